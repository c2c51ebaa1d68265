"""Folder that is first on the path of a worker's interpreter: sitecustomize.py runs before the script."""
