"""The data of the page as typed values, without browser and HTML, so that tests and commands can use it, too."""
