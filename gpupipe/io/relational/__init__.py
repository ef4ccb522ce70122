"""Verbs over whole tables: each builds a plan of Polars over a dataset's rows, and one engine runs them all."""
