"""Several worker processes behind one port: supervision, shared connections and shared memory."""
