"""A layout for each equation (SoyBean's tilings), found as the best choices of a network."""
