"""By which numbers does compiled code know bytes, kinds of JSON values, faults and outcomes?

They are typed: numba compiles a function anew for each value of a bare int that it is called with.
"""

from __future__ import annotations

from typing import Final

import numpy as np

# bytes
QUOTE: Final = np.int64(34)
COMMA_SIGN: Final = np.int64(44)
COLON_SIGN: Final = np.int64(58)
OPEN_OBJECT: Final = np.int64(123)
CLOSE_OBJECT: Final = np.int64(125)
OPEN_ARRAY: Final = np.int64(91)
CLOSE_ARRAY: Final = np.int64(93)
BACKSLASH: Final = np.int64(92)
MINUS: Final = np.int64(45)
PLUS: Final = np.int64(43)
ZERO: Final = np.int64(48)
NINE: Final = np.int64(57)
POINT: Final = np.int64(46)
LETTER_U: Final = np.int64(117)
LETTER_E: Final = np.int64(101)
HASH: Final = np.int64(35)
SLASH: Final = np.int64(47)

# kinds of value; up to BARE there is nothing to use
ABSENT: Final = np.int64(0)
NULL: Final = np.int64(1)
BARE: Final = np.int64(2)  # NaN, Infinity, inf, a missing value, an unknown word
TRUE: Final = np.int64(3)
FALSE: Final = np.int64(4)
NUMBER: Final = np.int64(5)
STRING: Final = np.int64(6)
ESCAPED: Final = np.int64(7)  # a string with backslashes
OBJECT: Final = np.int64(8)
ARRAY: Final = np.int64(9)

# what an event has that JSON does not allow; one bit each
STRAY_COMMA: Final = np.int64(1)
MISSING_COMMA: Final = np.int64(2)
BARE_WORD: Final = np.int64(4)
CONTROL: Final = np.int64(8)
BAD_ESCAPE: Final = np.int64(16)
QUOTE_ESCAPED: Final = np.int64(32)  # a backslash before a closing quote
BAD_NUMBER: Final = np.int64(64)
GRAMMAR: Final = np.int64(128)
DEEP: Final = np.int64(256)
INVALID_UTF8: Final = np.int64(512)
FAULTS: Final = np.int64(1023)

# how a step ended
OK: Final = np.int64(0)
INCOMPLETE: Final = np.int64(1)
ERROR: Final = np.int64(2)

# what an object or array may hold next
FIRST_VALUE: Final = np.int64(0)
FIRST_KEY: Final = np.int64(1)
COMMA: Final = np.int64(2)
VALUE: Final = np.int64(3)
KEY: Final = np.int64(4)
COLON: Final = np.int64(5)
