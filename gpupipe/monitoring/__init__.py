"""Reports on other data than that of the fit: broken expectations, profiles and drift."""
