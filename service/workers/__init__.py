"""Several processes that serve behind one port: who starts them, and how they share connections and memory."""
