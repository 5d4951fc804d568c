"""Layouts of several meshes: a program is cut into segments, each on one mesh, and values travel between them."""
