"""Named look-up of models, accelerators and clusters: the user's own folder first, then what ships."""
