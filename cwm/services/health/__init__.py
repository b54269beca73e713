"""Health: component checks, the examinations of ``cwm doctor``, and the census for metrics."""
