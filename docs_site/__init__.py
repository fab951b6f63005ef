"""The site: pages of docs/ and pages that are generated from the code, staged in one directory for Zensical."""
