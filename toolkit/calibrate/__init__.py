"""What measured runs teach: the residuals behind error bars, and coefficients fitted on runs."""
