"""Predictions beside measured runs: rows of a csv file become jobs, jobs are evaluated, errors are summed up."""
