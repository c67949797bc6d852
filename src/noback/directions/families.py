"""The families of directions: how many bits an element takes, and the value of each bit pattern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

# The upper half of the 256 mid-point quantiles of N(0, 1), scaled to unit variance and rounded to
# float32. They are written out, not computed, because a library's inverse normal may change its
# last bit. The lower half is their negative.
# fmt: off
_QUANTILES = (
    0.00490810582, 0.0147247883, 0.024542883, 0.0343633294, 0.0441870801, 0.0540150702, 0.0638482571, 0.0736875907,
    0.0835340247, 0.0933885276, 0.103252061, 0.1131256, 0.123010121, 0.132906616, 0.142816082, 0.152739525,
    0.162677959, 0.172632396, 0.182603881, 0.192593485, 0.202602223, 0.212631211, 0.222681522, 0.23275426,
    0.242850557, 0.25297156, 0.263118386, 0.273292243, 0.283494323, 0.293725848, 0.303988069, 0.314282238,
    0.324609667, 0.334971637, 0.345369548, 0.355804712, 0.366278589, 0.37679258, 0.387348205, 0.397946924,
    0.408590347, 0.419279993, 0.430017531, 0.440804631, 0.45164302, 0.462534428, 0.473480731, 0.484483778,
    0.495545506, 0.506667852, 0.517852962, 0.529102921, 0.540419877, 0.551806092, 0.563264012, 0.574795961,
    0.586404443, 0.598092079, 0.609861612, 0.621715844, 0.633657575, 0.645689964, 0.657816052, 0.670039177,
    0.682362676, 0.694790244, 0.707325459, 0.719972253, 0.73273468, 0.745616972, 0.7586236, 0.771759152,
    0.785028577, 0.798436999, 0.811989784, 0.825692594, 0.839551449, 0.853572667, 0.867762804, 0.882129014,
    0.896678686, 0.911419749, 0.926360488, 0.941509902, 0.95687747, 0.972473145, 0.988307893, 1.0043931,
    1.02074099, 1.03736508, 1.05427933, 1.07149923, 1.08904111, 1.10692298, 1.12516415, 1.1437856,
    1.16281033, 1.18226326, 1.2021718, 1.22256613, 1.24347925, 1.26494813, 1.28701317, 1.30972004,
    1.33311939, 1.35726845, 1.38223183, 1.40808296, 1.43490589, 1.46279716, 1.49186909, 1.52225268,
    1.55410254, 1.58760309, 1.62297666, 1.66049457, 1.70049369, 1.7433989, 1.78975785, 1.84029388,
    1.89599144, 1.9582423, 2.02911019, 2.11185861, 2.2121315, 2.34111333, 2.52684903, 2.89290118,
)
# fmt: on


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """A family of directions: an element is `values[its bits]`, `bits` of them an element."""

    name: str
    bits: int
    values: NDArray[np.float32]

    @property
    def band(self) -> int:
        """How many rows one Philox call (128 bits) serves."""
        return 128 // self.bits


_UPPER = np.array(_QUANTILES, dtype=np.float32)
NORMAL = Family("normal", 8, np.concatenate([-_UPPER[::-1], _UPPER]))
RADEMACHER = Family("rademacher", 1, np.array([-1.0, 1.0], dtype=np.float32))


@dataclass(frozen=True, slots=True)
class Normal:
    """."""

    kind: ClassVar[str] = "normal"


@dataclass(frozen=True, slots=True)
class Rademacher:
    """."""

    kind: ClassVar[str] = "rademacher"


AnyNoise = Normal | Rademacher
NOISES: dict[str, AnyNoise] = {"normal": Normal(), "rademacher": Rademacher()}
FAMILIES = {family.name: family for family in (NORMAL, RADEMACHER)}
