"""What the paper's theory says of a setting: Theorem 1's conditions and bound, Corollary 1's schedule.

Numbers only: nothing here knows of tensors, networks or problems. Every function reads a `Setting`.
"""

from depositum.theory.bound import Bound, bound
from depositum.theory.conditions import (
    Condition,
    Largest,
    Remedy,
    conditions,
    largest_alpha,
    lemma3_conditions,
    network_lam,
    proposition1_conditions,
    proven,
    rounded_down,
)
from depositum.theory.corollary import (
    CorollaryBound,
    Schedule,
    corollary,
    corollary_bound,
    corollary_setting,
    smallest_steps,
)
from depositum.theory.inequalities import (
    lemma1_rhs,
    lemma2_model_rhs,
    lemma2_movement_rhs,
    lemma2_tracking_rhs,
    lemma2_variation_rhs,
    lemma3_rhs,
    proposition1_rhs,
)
from depositum.theory.margins import delta1, delta2
from depositum.theory.setting import Setting

__all__ = [
    "Bound",
    "Condition",
    "CorollaryBound",
    "Largest",
    "Remedy",
    "Schedule",
    "Setting",
    "bound",
    "conditions",
    "corollary",
    "corollary_bound",
    "corollary_setting",
    "delta1",
    "delta2",
    "largest_alpha",
    "lemma1_rhs",
    "lemma2_model_rhs",
    "lemma2_movement_rhs",
    "lemma2_tracking_rhs",
    "lemma2_variation_rhs",
    "lemma3_conditions",
    "lemma3_rhs",
    "network_lam",
    "proposition1_conditions",
    "proposition1_rhs",
    "proven",
    "rounded_down",
    "smallest_steps",
]
