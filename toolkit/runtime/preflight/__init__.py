"""Before training: is each node, the storage and the network between them as the plan supposes?"""
