"""Error bars: residuals of measured runs that are like a job, as an interval around its prediction."""
