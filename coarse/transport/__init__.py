"""Transport of bytes and records: mailboxes and doorbells on a node, MPI between nodes; and the meeting of ranks."""
