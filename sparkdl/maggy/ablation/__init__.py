"""Ablation studies of maggy: what a model is worth without one of its components (driver)."""

from sparkdl.maggy.ablation.ablationstudy import AblationStudy

__all__ = ["AblationStudy"]
