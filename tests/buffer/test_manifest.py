import json

from pbt_agents.buffer.manifest import from_record, to_record
from pbt_agents.buffer.segment import Location
from pbt_agents.buffer.window import Entry


def test_an_entry_survives_a_checkpoint_of_json() -> None:
    entry = Entry("a.1.7", Location("000003-cafe0000.arrow", 1096, 2224), version=12, uses=3)
    assert from_record(json.loads(json.dumps(to_record(entry)))) == entry
