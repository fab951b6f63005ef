"""What the page shows, as typed values: no browser and no HTML here, so that tests and commands read the same."""
