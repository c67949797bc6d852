"""Screening: short trials before a run's first step find its learning rate (`lr = "auto"`)."""

from noback.screening.screening import Found, screened

__all__ = ["Found", "screened"]
