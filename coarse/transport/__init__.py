"""How bytes and records travel: mailboxes and doorbells on a node, MPI between nodes; and how ranks meet."""
