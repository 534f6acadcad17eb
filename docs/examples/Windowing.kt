import kotlin.math.*

/** One sensor's samples: times in s, ascending; [x, y, z] in m/s² with gravity (Android's signs), or rad/s. */
class Samples(val times: DoubleArray, val values: List<FloatArray>)

/** Windows on one grid, as har_pipeline makes them, of sensors that are as fast as the grid, or faster. */
class Windowing(
    private val rateHz: Double = 50.0, private val length: Int = 128, private val stride: Int = 64,
    private val halfWidthS: Double = 0.13, private val maxGapS: Double = 0.1,
    cutoffHz: Double = 22.0, beta: Double = 5.65
) {
    private val kernel = DoubleArray(16385) { step ->
        val share = step / 16384.0
        val angle = 2 * PI * cutoffHz * share * halfWidthS
        val sinc = if (step > 0) sin(angle) / angle else 1.0
        2 * cutoffHz * sinc * bessel0(beta * sqrt(1 - share * share)) / bessel0(beta)
    }

    /** The windows of one stretch, oldest first: length × 6 numbers, row by row. */
    fun windows(acc: Samples, gyro: Samples): List<FloatArray> = runs(acc).flatMap { a -> runs(gyro).flatMap { g ->
        val begin = max(acc.times[a.first], gyro.times[g.first])
        val rows = floor((min(acc.times[a.last], gyro.times[g.last]) + 1e-6 - begin) * rateHz).toInt() + 1
        val grid = (0 until rows).map { begin + it / rateHz }.map { filtered(acc, a, it) + filtered(gyro, g, it) }
        (0..grid.size - length step stride).map { at -> FloatArray(length * 6) { grid[at + it / 6][it % 6].toFloat() } }
    } }

    private fun runs(sensor: Samples): List<IntRange> {
        val times = sensor.times
        require((1 until times.size).all { times[it] > times[it - 1] }) { "sort the samples; no two of one time" }
        val gaps = (1 until times.size).filter { times[it] - times[it - 1] > maxGapS + 1e-6 }
        return (listOf(0) + gaps).zip(gaps + times.size) { first, next -> first until next }.filter { !it.isEmpty() }
    }

    /** A windowed sinc with a local quadratic fit, at the true times of the samples. */
    private fun filtered(sensor: Samples, run: IntRange, at: Double): DoubleArray {
        val times = sensor.times
        fun firstFrom(time: Double) =
            times.binarySearch(time, run.first, run.last + 1).let { if (it < 0) -it - 1 else it }
        var end = firstFrom(at + halfWidthS)
        while (end <= run.last && times[end] <= at + halfWidthS) end++
        val near = firstFrom(at - halfWidthS) until end
        val s = doubleArrayOf(1.0, 0.0, 0.0)
        val m = DoubleArray(5)
        val parts = near.map { i ->
            val apart = times[min(i + 1, run.last)] - times[max(i - 1, run.first)]
            val width = if (run.first == run.last) 1.0 else apart / 2
            val u = (times[i] - at) / halfWidthS
            val h = kernel[min(16384, (abs(u) * 16384).roundToInt())] * width
            val c = cos(PI * u / 2).pow(2) * width
            for (power in 0..2) s[power] -= h * u.pow(power)
            for (power in 0..4) m[power] += c * u.pow(power)
            Triple(h, c, u)
        }
        val (r1, r2) = Pair(m[2] + 1e-3 * m[0], m[4] + 1e-3 * m[0])
        val (c00, c01, c02) = Triple(r1 * r2 - m[3] * m[3], m[2] * m[3] - m[1] * r2, m[1] * m[3] - r1 * m[2])
        val (c11, c12, c22) = Triple(m[0] * r2 - m[2] * m[2], m[1] * m[2] - m[0] * m[3], m[0] * r1 - m[1] * m[1])
        val fit = listOf(listOf(c00, c01, c02), listOf(c01, c11, c12), listOf(c02, c12, c22))
            .map { it[0] * s[0] + it[1] * s[1] + it[2] * s[2] }.map { it / (m[0] * c00 + m[1] * c01 + m[2] * c02) }
        val weights = parts.map { (h, c, u) -> h + c * (fit[0] + fit[1] * u + fit[2] * u * u) }
        return DoubleArray(3) { axis -> near.map { weights[it - near.first] * sensor.values[it][axis] }.sum() }
    }

    private fun bessel0(x: Double): Double =
        generateSequence(Pair(1.0, 1)) { (term, k) -> Pair(term * (x / (2 * k)).pow(2), k + 1) }
            .map { it.first }.takeWhile { it > 1e-20 }.sum()
}
