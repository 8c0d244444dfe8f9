"""What training minimises, a file each."""
