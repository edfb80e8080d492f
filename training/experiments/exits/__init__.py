"""Control X4: does a selector earn anything at an exit? Arms that differ in their head alone."""
