"""The worker's side: runs in processes of its own, and is the only part of the pool that imports torch."""
