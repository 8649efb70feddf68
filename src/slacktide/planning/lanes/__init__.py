"""Decides which lanes replicas run on, which cores lanes have, and when replicas come first (see
README.md). Pure. Import its modules: both `scaling` and `pipelines` use them."""
