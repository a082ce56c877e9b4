"""A run's metrics in the files of other tools. The run's own JSON lines stay the truth; what is made here can be made again."""
