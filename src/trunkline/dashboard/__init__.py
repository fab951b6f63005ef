"""Views of a hub for people: metrics, `trunkline top`, the page, and problems with their next steps."""
