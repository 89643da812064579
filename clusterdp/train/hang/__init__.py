"""The hang watch: notices that the ranks make no progress, and reports which rank is behind.

All modules except page and hang_watch run in the agent of the node, a process without torch: see node_watch. The rank
itself uses flight_record only to switch the recorder on. The agent also notices a rank that is stopped, or that holds
the GIL in C code for ever. A thread of the rank could not notice either. While the rank makes progress, its watcher
only reads one page of memory, and uses neither the network nor the run folder.
"""
