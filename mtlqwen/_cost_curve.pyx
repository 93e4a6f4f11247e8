"""What the rows of a pass cost on this device, and how many drafts that makes worth their price."""

from libc.stdlib cimport calloc, free

# What holds a pass up, cold memory first of all, only makes it longer: a quicker one is believed, a
# slower one is averaged with those before it and with the guess that stood for it until then.
cdef double RISE = 0.1  # least weight of a slower one
cdef double HELD_UP = 1.5  # times what was known, as which it counts at most behind the first
cdef double FIRST_SLOPE = 0.1  # guess of what a draft costs, of a pass without any
cdef double LEAST_GAIN = 1.02  # of expected tokens per time over plain decoding: less is noise
cdef double LEAST_LIKELY = 0.05  # a draft less likely to count is not worth asking the price of

cdef enum:
    FIRST_TRIAL = 3  # drafts of a pass before any was measured; then twice as many, and one
    PLAIN_FIRST = 2  # passes without drafts before the first with some
    PLAIN_EVERY = 32  # passes with drafts before another without


cdef class CostCurve:
    def __cinit__(self, Py_ssize_t num_sequences, Py_ssize_t max_rows):
        if not 1 <= num_sequences <= max_rows:
            raise ValueError(f"{num_sequences} sequences in passes of {max_rows} rows")
        self.num_sequences = num_sequences
        self.max_rows = max_rows
        self.measured_ns = <double *>calloc(max_rows + 1, sizeof(double))
        self.num_measured = <Py_ssize_t *>calloc(max_rows + 1, sizeof(Py_ssize_t))
        self.further = <double *>calloc(num_sequences, sizeof(double))
        self.likely = <double *>calloc(num_sequences, sizeof(double))
        self.limits = <Py_ssize_t *>calloc(num_sequences, sizeof(Py_ssize_t))
        self.counts = <Py_ssize_t *>calloc(num_sequences, sizeof(Py_ssize_t))
        self.best = <Py_ssize_t *>calloc(num_sequences, sizeof(Py_ssize_t))
        if (
            self.measured_ns == NULL or self.num_measured == NULL or self.further == NULL
            or self.likely == NULL or self.limits == NULL or self.counts == NULL or self.best == NULL
        ):
            raise MemoryError("cost curve")

    def __dealloc__(self):
        free(self.measured_ns)
        free(self.num_measured)
        free(self.further)
        free(self.likely)
        free(self.limits)
        free(self.counts)
        free(self.best)

    @property
    def has_plain(self):
        return self.num_measured[self.num_sequences] > 0

    @property
    def wants_plain(self):
        cdef Py_ssize_t num_plain = self.num_measured[self.num_sequences]
        return num_plain < PLAIN_FIRST or self.since_plain >= PLAIN_EVERY

    def measure(self, Py_ssize_t num_rows, double ns):
        if not self.num_sequences <= num_rows <= self.max_rows:
            raise ValueError(
                f"a pass of {num_rows} rows is not within {self.num_sequences} and {self.max_rows}"
            )
        cdef Py_ssize_t count = self.num_measured[num_rows]
        cdef double known = self.at(num_rows), average
        ns = max(ns, 1)  # 0 stands for never, and is divided by
        if count > 0:
            ns = min(ns, HELD_UP * known)
        average = ns
        if 0 < known < ns:
            average = known + max(RISE, 1.0 / (count + 2)) * (ns - known)
        self.measured_ns[num_rows] = average
        self.num_measured[num_rows] = count + 1
        if num_rows == self.num_sequences:
            self.since_plain = 0
        else:
            self.since_plain += 1
            self.first = min(self.first, num_rows) if self.first else num_rows
            self.last = max(self.last, num_rows)
        return ns

    def ns(self, Py_ssize_t num_rows):
        return self.at(num_rows)

    def paying(self, rates, limits, Py_ssize_t room):
        cdef Py_ssize_t i, known, n = len(rates)
        if not 1 <= n <= self.num_sequences or len(limits) != n:
            raise ValueError(f"{n} rates, {len(limits)} limits of {self.num_sequences} sequences")
        for i in range(n):
            self.likely[i], self.further[i] = rates[i]
            self.limits[i] = limits[i]
        # What was measured says little of passes far wider, and to try one is dear.
        known = max(FIRST_TRIAL, 2 * (self.last - self.num_sequences) + 1)
        self.choose(n, min(room, known, self.max_rows - self.num_sequences))
        return [self.best[i] for i in range(n)]

    cdef double at(self, Py_ssize_t num_rows) noexcept nogil:
        """Drafts cost a step, the drafter's block, and then so much a row."""
        cdef Py_ssize_t first = self.first, last = self.last, below = num_rows, above = num_rows
        cdef Py_ssize_t num_drafts = num_rows - self.num_sequences
        cdef double *ns = self.measured_ns
        cdef double plain = ns[self.num_sequences], slope
        if first == 0:
            return plain * (1 + FIRST_SLOPE * max(num_drafts, 0))
        plain = plain if plain > 0 else ns[first]
        slope = FIRST_SLOPE * plain
        if num_drafts <= 0:
            return plain
        if num_rows < first:
            return max(
                ns[first] - slope * (first - num_rows),
                plain + (ns[first] - plain) * num_drafts / (first - self.num_sequences),
            )
        if num_rows > last:
            if last > first:  # no row is nearly free, whatever was measured
                slope = max((ns[last] - ns[first]) / (last - first), slope / 8)
            return ns[last] + slope * (num_rows - last)
        while ns[below] == 0:
            below -= 1
        while ns[above] == 0:
            above += 1
        if above == below:
            return ns[below]
        return ns[below] + (ns[above] - ns[below]) * (num_rows - below) / (above - below)

    cdef void choose(self, Py_ssize_t num_drafting, Py_ssize_t room) noexcept nogil:
        """Takes the next draft where it is most likely to count, as long as that helps."""
        cdef Py_ssize_t i, chosen, num_rows = self.num_sequences
        cdef double expected = num_rows, best = LEAST_GAIN * expected / self.at(num_rows)
        for i in range(num_drafting):
            self.counts[i] = self.best[i] = 0
            if self.limits[i] <= 0:
                self.likely[i] = 0
        while num_rows < self.num_sequences + room:
            chosen = 0
            for i in range(1, num_drafting):
                if self.likely[i] > self.likely[chosen]:
                    chosen = i
            if self.likely[chosen] < LEAST_LIKELY:
                break
            num_rows += 1
            expected += self.likely[chosen]
            self.counts[chosen] += 1
            self.likely[chosen] *= self.further[chosen]
            if self.counts[chosen] == self.limits[chosen]:
                self.likely[chosen] = 0
            if expected > best * self.at(num_rows):
                best = expected / self.at(num_rows)
                for i in range(num_drafting):
                    self.best[i] = self.counts[i]
