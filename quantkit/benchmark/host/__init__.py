"""Host of a measurement: description of the machine, and CPU quota of its container."""
