/* exp and log by additions, multiplications and divisions alone: the bits of cpu/runtime/elementary.py of convt3d,
   whatever the C library. The factors C3D_EXP and C3D_LOG, and C3D_LN2, come from there. */

static double series(const double *factors, int count, double x) {
    double total = factors[0];
    for (int n = 1; n < count; n++)
        total = total * x + factors[n];
    return total;
}

static double exponential(double x) {
    if (isnan(x))
        return x;
    x = x < -C3D_FAR ? -C3D_FAR : x > C3D_FAR ? C3D_FAR : x;
    double k = nearbyint(x * C3D_LOG2_E), r = (x - k * C3D_LN2) - k * C3D_LN2_REST;
    return ldexp(series(C3D_EXP, sizeof C3D_EXP / sizeof *C3D_EXP, r), (int)k);
}

static double logarithm(double x) {
    if (!(x > 0.0) || isinf(x))
        return x == 0.0 ? -INFINITY : x > 0.0 ? x : NAN;
    int power;
    double m = frexp(x, &power);
    if (m < 0.70710678118654752440)
        m *= 2.0, power--;
    double k = power, s = (m - 1.0) / (m + 1.0);
    return k * C3D_LN2 + (2.0 * s * series(C3D_LOG, sizeof C3D_LOG / sizeof *C3D_LOG, s * s) + k * C3D_LN2_REST);
}
