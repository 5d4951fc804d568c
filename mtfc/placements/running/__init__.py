"""The execution of placements: each part of an operator on its own device, with transfers between devices."""
