"""The plugins that Hydra discovers."""
