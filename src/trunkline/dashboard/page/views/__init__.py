"""The views of the page, one file each. A view reads the model and builds elements."""
