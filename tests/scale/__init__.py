"""Jobs of many more ranks than processors, whose ranks are forked from a process that has torch in memory already."""
