"""The site: pages of docs/ and pages that are made of the code, staged in one directory for Zensical."""
