"""Verbs over whole tables: each builds a Polars plan over a dataset's rows, and one engine runs them all."""
