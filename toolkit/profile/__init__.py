"""``toolkit profile``: one device measured, predictions beside it, and the calibration that follows."""
