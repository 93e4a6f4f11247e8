"""Makes the bundled demo model and its DFlash drafter: data, training, export, reference."""
