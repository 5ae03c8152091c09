"""Child processes, and facts about this one."""
