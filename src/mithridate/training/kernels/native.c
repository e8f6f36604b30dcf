/* The first stages of a convolutional network, for one model and a batch: outputs, and the gradients of each example.
 * Whole networks of such stages and linear layers: the clipped sum of a batch. Sums of products over a batch. Noise.
 *
 * A stage is a convolution (stride 1, zero padding, a bias), tanh or relu, and the mean over windows side by side. Each
 * example passes through all stages before the next one begins, so that everything it needs stays in the first caches.
 *
 * Inside, images are stored position by position, [row][column][channel], and vectors run over channels. A patch of a
 * row of an image is then one run of kernel_width * channels numbers, and all the work is products of small matrices
 * whose left one, the patches, is read in place as overlapping rows of the image:
 *
 *   outputs          [positions, outputs] = patches   [positions, run]     x weights [run, outputs]
 *   input gradient   [positions, run]     = errors    [positions, outputs] x weights [outputs, run]
 *   weight gradient  [run, outputs]       = patches^T [run, positions]     x errors  [positions, outputs]
 *
 * for each row of the kernel; the first two add up over those rows, and runs of the input gradient over positions.
 *
 * Only positions under a whole window are computed. Numbers of channels are rounded up to LANES; the lanes in excess
 * never mix with the others, and hold nothing of interest but in gradients of parameters, where they are 0. Nothing is
 * shared between calls: all memory is the caller's.
 */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && !(defined(__AVX2__) && defined(__FMA__))
#error "Without AVX2 and FMA this is slower than the libraries that it replaces."
#endif

#define LANES 8
/* Keeps the compiler from replacing a pointer by sums of others, for which there are too few registers. */
#define OPAQUE(pointer) __asm__("" : "+r"(pointer))
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* Registers for sums: 32 vector registers hold up to 25 sums and what is added to them, 16 hold 12. */
#ifdef __AVX512F__
#define MANY_REGISTERS 1
#else
#define MANY_REGISTERS 0
#endif

typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t i8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef double d8 __attribute__((vector_size(64), aligned(8), may_alias));
typedef uint32_t u8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint64_t w8 __attribute__((vector_size(64), aligned(8), may_alias));
typedef uint64_t w4 __attribute__((vector_size(32), aligned(8), may_alias));

typedef struct {
    int64_t channels, height, width, outputs, kernel_height, kernel_width, padding_height, padding_width;
    int64_t relu, window_height, window_width;
} Stage;

/* Sizes that follow from a stage. A run is the part of a patch that lies in one row of the image. */
typedef struct {
    int64_t rows, columns;             /* of the result */
    int64_t tall, wide;                /* of the convolution, as far as windows cover it */
    int64_t padded_height, padded_width;
    int64_t run, run_lanes, output_lanes, entries;
    int64_t activations, image;        /* floats of one example */
} Sizes;

static int64_t rounded(int64_t number, int64_t unit) { return (number + unit - 1) / unit * unit; }

static Sizes sizes_of(const Stage *stage)
{
    Sizes sizes;
    sizes.padded_height = stage->height + 2 * stage->padding_height;
    sizes.padded_width = stage->width + 2 * stage->padding_width;
    sizes.rows = (sizes.padded_height - stage->kernel_height + 1) / stage->window_height;
    sizes.columns = (sizes.padded_width - stage->kernel_width + 1) / stage->window_width;
    sizes.tall = sizes.rows * stage->window_height;
    sizes.wide = sizes.columns * stage->window_width;
    sizes.run = stage->kernel_width * stage->channels;
    sizes.run_lanes = rounded(sizes.run, LANES);
    sizes.output_lanes = rounded(stage->outputs, LANES);
    sizes.entries = stage->channels * stage->kernel_height * stage->kernel_width;
    sizes.activations = rounded(sizes.tall * sizes.wide * sizes.output_lanes, 16);
    sizes.image = rounded(sizes.padded_height * sizes.padded_width * stage->channels, 16);
    return sizes;
}

/* --- products of small matrices ----------------------------------------------------------------------------------- */

/* out[t] = start[t] + sum over segments and k of left[t, k] * right[k], a vector for each t < count. In `left`, t moves
 * by left_row and k by left_step, and each segment of `depth` begins left_segment after the one before; `right` is read
 * on and on, right_step apart. start_row is 0 where all t have the same start. */
typedef struct {
    const float *left;
    int64_t left_row, left_step, left_segment;
    const float *right;
    int64_t right_step, segments, depth;
    const float *start;
    int64_t start_row;
    float *out;
    int64_t out_row;
} Operands;
typedef void Product(const Operands *);

#define DEFINE_PRODUCT(vector, count)                                                                                  \
    static void product_##vector##_##count(const Operands *p)                                                          \
    {                                                                                                                  \
        const float *segment = p->left, *right = p->right;                                                             \
        int64_t left_row = p->left_row, left_step = p->left_step, right_step = p->right_step, depth = p->depth;        \
        vector sums[count];                                                                                            \
        UNROLL for (int t = 0; t < count; t++) sums[t] = *(const vector *)(p->start + t * p->start_row);               \
        for (int64_t i = 0; i < p->segments; i++, segment += p->left_segment) {                                        \
            const float *left = segment;                                                                               \
            for (int64_t k = 0; k < depth; k++, left += left_step, right += right_step) {                              \
                vector factor = *(const vector *)right;                                                                \
                UNROLL for (int t = 0; t < count; t++) sums[t] += factor * left[t * left_row];                         \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int t = 0; t < count; t++) *(vector *)(p->out + t * p->out_row) = sums[t];                         \
    }

/* The same for an image of one channel, whose `span` entries of a run are read once for all positions. */
#define DEFINE_GREY_PRODUCT(vector, count, span)                                                                       \
    static void grey_##vector##_##count##_##span(const Operands *p)                                                    \
    {                                                                                                                  \
        const float *left = p->left, *right = p->right;                                                                \
        vector sums[count];                                                                                            \
        UNROLL for (int t = 0; t < count; t++) sums[t] = *(const vector *)(p->start + t * p->start_row);               \
        for (int64_t segment = 0; segment < p->segments; segment++, left += p->left_segment) {                         \
            vector factors[span];                                                                                      \
            UNROLL for (int k = 0; k < span; k++, right += sizeof(vector) / sizeof(float))                             \
                factors[k] = *(const vector *)right;                                                                   \
            UNROLL for (int i = 0; i < count + span - 1; i++) {                                                        \
                vector pixel = left[i] - (vector){0.0f};                                                               \
                UNROLL for (int k = 0; k < span; k++)                                                                  \
                    if (i >= k && i - k < count) sums[i - k] += factors[k] * pixel;                                    \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int t = 0; t < count; t++) *(vector *)(p->out + t * p->out_row) = sums[t];                         \
    }

/* out[place[j]] = sum over rows and columns of errors[row, column] * image[row, column * channels + j], for j < width;
 * the same for `height` rows of the kernel together, whose places follow each other. */
typedef void Correlation(const float *image, int64_t image_row, int64_t channels, const float *errors, int64_t rows,
                         int64_t columns, int64_t lanes, const int32_t *place, int64_t place_row, float *out);

#define DEFINE_CORRELATION(vector, high, across)                                                                       \
    static void correlation_##vector##_##high##_##across(                                                              \
        const float *image, int64_t image_row, int64_t channels, const float *errors, int64_t rows, int64_t columns,   \
        int64_t lanes, const int32_t *place, int64_t place_row, float *out)                                            \
    {                                                                                                                  \
        vector sums[(high) * (across)];                                                                                \
        UNROLL for (int j = 0; j < (high) * (across); j++) sums[j] = (vector){0.0f};                                   \
        for (int64_t row = 0; row < rows; row++, image += image_row) {                                                 \
            const float *pixels[high];                                                                                 \
            UNROLL for (int y = 0; y < (high); y++) {                                                                  \
                pixels[y] = image + y * image_row;                                                                     \
                OPAQUE(pixels[y]);                                                                                     \
            }                                                                                                          \
            for (int64_t column = 0; column < columns; column++, errors += lanes) {                                    \
                vector error = *(const vector *)errors;                                                                \
                UNROLL for (int j = 0; j < (high) * (across); j++)                                                     \
                    sums[j] += error * pixels[j / (across)][j % (across)];                                             \
                UNROLL for (int y = 0; y < (high); y++) pixels[y] += channels;                                         \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int j = 0; j < (high) * (across); j++)                                                             \
            *(vector *)(out + lanes * place[j / (across) * place_row + j % (across)]) = sums[j];                       \
    }

#define MOST_SUMS 12
#define FOR_EACH_COUNT(f, vector)                                                                                      \
    f(vector, 1) f(vector, 2) f(vector, 3) f(vector, 4) f(vector, 5) f(vector, 6)                                      \
    f(vector, 7) f(vector, 8) f(vector, 9) f(vector, 10) f(vector, 11) f(vector, 12)
#define FOR_EACH_WIDTH(f, vector)                                                                                      \
    f(vector, 1, 1) f(vector, 1, 2) f(vector, 1, 3) f(vector, 1, 4) f(vector, 1, 5) f(vector, 1, 6)                    \
    f(vector, 1, 7) f(vector, 1, 8) f(vector, 1, 9) f(vector, 1, 10) f(vector, 1, 11) f(vector, 1, 12)
/* More sums at a time, for machines with many registers; and several rows of a narrow kernel together. */
#define FOR_EACH_WIDER(f, vector) f(vector, 1, 15) f(vector, 1, 16) f(vector, 1, 24) f(vector, 3, 3) f(vector, 5, 5)

#define PRODUCT_ENTRY(vector, count) product_##vector##_##count,
#define DEFINE_GREY_3(vector, count) DEFINE_GREY_PRODUCT(vector, count, 3)
#define DEFINE_GREY_5(vector, count) DEFINE_GREY_PRODUCT(vector, count, 5)
#define GREY_3_ENTRY(vector, count) grey_##vector##_##count##_3,
#define GREY_5_ENTRY(vector, count) grey_##vector##_##count##_5,
#define CORRELATION_ENTRY(vector, high, across) correlation_##vector##_##high##_##across,

FOR_EACH_COUNT(DEFINE_PRODUCT, v8)
FOR_EACH_COUNT(DEFINE_GREY_3, v8)
FOR_EACH_COUNT(DEFINE_GREY_5, v8)
FOR_EACH_WIDTH(DEFINE_CORRELATION, v8)
#if MANY_REGISTERS
FOR_EACH_WIDER(DEFINE_CORRELATION, v8)
#endif
static Product *const products_8[] = {FOR_EACH_COUNT(PRODUCT_ENTRY, v8)};
static Product *const grey_products_3[] = {FOR_EACH_COUNT(GREY_3_ENTRY, v8)};
static Product *const grey_products_5[] = {FOR_EACH_COUNT(GREY_5_ENTRY, v8)};
static Correlation *const correlations_8[] = {FOR_EACH_WIDTH(CORRELATION_ENTRY, v8)};
#if MANY_REGISTERS
FOR_EACH_COUNT(DEFINE_PRODUCT, v16)
FOR_EACH_WIDTH(DEFINE_CORRELATION, v16)
FOR_EACH_WIDER(DEFINE_CORRELATION, v16)
static Product *const products_16[] = {FOR_EACH_COUNT(PRODUCT_ENTRY, v16)};
static Correlation *const correlations_16[] = {FOR_EACH_WIDTH(CORRELATION_ENTRY, v16)};
#endif

/* How many of `left` lanes the next vector takes. */
INLINE int64_t vector_lanes(int64_t left) { return MANY_REGISTERS && left >= 16 ? 16 : 8; }

/* How many of `left` sums to do next: nearly equal parts, because few sums at a time wait for each other. */
INLINE int64_t next_count(int64_t left)
{
    int64_t parts = (left + MOST_SUMS - 1) / MOST_SUMS;
    return (left + parts - 1) / parts;
}

static Product *product_for(int64_t lanes, int64_t count)
{
#if MANY_REGISTERS
    if (lanes == 16) return products_16[count - 1];
#endif
    (void)lanes;
    return products_8[count - 1];
}

#define CHOOSE(high, across) (lanes == 16 ? correlation_v16_##high##_##across : correlation_v8_##high##_##across)

/* The kernel for the next entries of a run of which `left` are left, and how many rows and entries it takes. */
static Correlation *correlation_for(int64_t lanes, int64_t run, int64_t left, int64_t rows, int64_t *high,
                                    int64_t *across)
{
    *high = 1;
#if MANY_REGISTERS
    if (run == 5 && rows >= 5) return *high = 5, *across = 5, CHOOSE(5, 5);
    if (run == 3 && rows >= 3) return *high = 3, *across = 3, CHOOSE(3, 3);
    if (left >= 48 || left == 24) return *across = 24, CHOOSE(1, 24);
    if (left % 16 == 0 && left >= 16) return *across = 16, CHOOSE(1, 16);
    if (left == 15 || left >= 30) return *across = 15, CHOOSE(1, 15);
#endif
    (void)lanes, (void)run, (void)rows;
    *across = next_count(left);
#if MANY_REGISTERS
    if (lanes == 16) return correlations_16[*across - 1];
#endif
    return correlations_8[*across - 1];
}

/* --- numbers one by one ------------------------------------------------------------------------------------------- */

/* exp(x) = power + power * series, x = n ln 2 + r, power = 2^n, series = exp(r) - 1; for |x| <= 87. */
INLINE void exp_parts(v8 x, v8 *power, v8 *series)
{
    /* Adding 1.5 * 2^23 rounds to an integer, which is then in the last bits. */
    v8 shifted = x * 1.44269504f + 12582912.0f;
    v8 number = shifted - 12582912.0f;
    v8 rest = number * -0.693145752f + x;
    rest = number * -1.42860677e-6f + rest;
    v8 sum = rest * 1.38888889e-3f + 8.33333333e-3f;
    sum = sum * rest + 4.16666667e-2f;
    sum = sum * rest + 1.66666667e-1f;
    sum = sum * rest + 0.5f;
    *series = sum * (rest * rest) + rest;
    *power = (v8)(((i8)shifted << 23) + 0x3f800000);
}

/* What is beyond the bounds becomes them; NaN stays NaN. */
INLINE v8 clamp(v8 x, float least, float most)
{
    const v8 low = (v8){0.0f} + least, high = (v8){0.0f} + most;
    i8 below = x < low, above = x > high;
    return (v8)(((i8)x & ~(above | below)) | ((i8)low & below) | ((i8)high & above));
}

/* tanh(x) = e / (e + 2) with e = exp(2x) - 1; within 2e-7, and exactly 1 and -1 far from 0. NaN stays NaN. */
INLINE v8 tanh_of(v8 x)
{
    v8 power, series;
    exp_parts(clamp(x + x, -19.0f, 19.0f), &power, &series);
    v8 grown = power * series + (power - 1.0f);
    return grown / (grown + 2.0f);
}

/* exp(x) for x <= 0. NaN stays NaN. */
INLINE v8 exp_of(v8 x)
{
    v8 power, series;
    exp_parts(clamp(x, -87.0f, 0.0f), &power, &series);
    return power * series + power;
}

/* NaN stays NaN: it is not below 0. */
INLINE v8 relu_of(v8 x) { return (v8)((i8)x & ~(i8)(x <= (v8){0.0f})); }

static void activate(float *values, int64_t count, int64_t relu)
{
    if (relu)
        for (int64_t i = 0; i < count; i += LANES) *(v8 *)(values + i) = relu_of(*(v8 *)(values + i));
    else
        for (int64_t i = 0; i < count; i += LANES) *(v8 *)(values + i) = tanh_of(*(v8 *)(values + i));
}

/* Means over the windows of one row of windows, [column][lane]. */
INLINE void pool_by(int64_t tall, int64_t wide, const float *values, const Sizes *sizes, float *out)
{
    int64_t lanes = sizes->output_lanes, line = sizes->wide * lanes;
    float share = 1.0f / (float)(tall * wide);
    for (int64_t column = 0; column < sizes->columns; column++)
        for (int64_t lane = 0; lane < lanes; lane += LANES) {
            const float *window = values + column * wide * lanes + lane;
            v8 sum = {0.0f};
            for (int64_t y = 0; y < tall; y++)
                for (int64_t x = 0; x < wide; x++) sum += *(const v8 *)(window + y * line + x * lanes);
            *(v8 *)(out + column * lanes + lane) = sum * share;
        }
}

/* The gradient of the results, spread over windows, times the slope of the activation; and its sum over positions. */
INLINE void unpool_by(int64_t tall, int64_t wide, int64_t relu, const float *gradients, const float *activations,
                      int64_t outputs, const Sizes *sizes, float *errors, float *biases)
{
    int64_t lanes = sizes->output_lanes, line = sizes->wide * lanes;
    float share = 1.0f / (float)(tall * wide);
    for (int64_t lane = 0; lane < lanes; lane += LANES) {
        v8 total = {0.0f};
        i8 inside = (i8){0, 1, 2, 3, 4, 5, 6, 7} < (i8){0} + (int32_t)(outputs - lane);
        for (int64_t row = 0; row < sizes->rows; row++)
            for (int64_t column = 0; column < sizes->columns; column++) {
                v8 spread = *(const v8 *)(gradients + (row * sizes->columns + column) * lanes + lane) * share;
                spread = (v8)((i8)spread & inside);
                v8 sum = {0.0f};
                int64_t at = row * tall * line + column * wide * lanes + lane;
                for (int64_t y = 0; y < tall; y++)
                    for (int64_t x = 0; x < wide; x++) {
                        v8 value = *(const v8 *)(activations + at + y * line + x * lanes);
                        v8 error = spread - spread * value * value;
                        if (relu) error = (v8)((i8)spread & ~(i8)(value <= (v8){0.0f}));
                        *(v8 *)(errors + at + y * line + x * lanes) = error;
                        sum += error;
                    }
                total += sum;
            }
        *(v8 *)(biases + lane) = total;
    }
}

/* Windows of 2 x 2 are so common that they get code of their own. */
static int is_common(const Stage *stage) { return stage->window_height == 2 && stage->window_width == 2; }

static void pool(const float *values, const Stage *stage, const Sizes *sizes, float *out)
{
    if (is_common(stage))
        pool_by(2, 2, values, sizes, out);
    else
        pool_by(stage->window_height, stage->window_width, values, sizes, out);
}

static void unpool(const float *gradients, const float *activations, const Stage *stage, const Sizes *sizes,
                   float *errors, float *biases)
{
    if (is_common(stage) && stage->relu)
        unpool_by(2, 2, 1, gradients, activations, stage->outputs, sizes, errors, biases);
    else if (is_common(stage))
        unpool_by(2, 2, 0, gradients, activations, stage->outputs, sizes, errors, biases);
    else
        unpool_by(stage->window_height, stage->window_width, stage->relu, gradients, activations, stage->outputs, sizes,
                  errors, biases);
}

/* --- other orders of the same numbers ----------------------------------------------------------------------------- */

#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLE 1
#endif
#endif

#ifdef HAS_SHUFFLE
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define FRONT(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define BACK(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define SECOND(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)

INLINE void transpose_8(const float *in, int64_t in_row, float *out, int64_t out_row)
{
    v8 a[8], b[8];
    UNROLL for (int i = 0; i < 8; i++) a[i] = *(const v8 *)(in + i * in_row);
    UNROLL for (int i = 0; i < 8; i += 2) b[i] = LOW(a[i], a[i + 1]), b[i + 1] = HIGH(a[i], a[i + 1]);
    UNROLL for (int i = 0; i < 8; i += 4) {
        a[i] = FRONT(b[i], b[i + 2]), a[i + 1] = BACK(b[i], b[i + 2]);
        a[i + 2] = FRONT(b[i + 1], b[i + 3]), a[i + 3] = BACK(b[i + 1], b[i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        *(v8 *)(out + i * out_row) = FIRST(a[i], a[i + 4]);
        *(v8 *)(out + (i + 4) * out_row) = SECOND(a[i], a[i + 4]);
    }
}
#endif

/* out[j][i] = in[i][j] for i < rows, j < columns. */
static void transpose(const float *in, int64_t in_row, int64_t rows, int64_t columns, float *out, int64_t out_row)
{
    int64_t i = 0;
#ifdef HAS_SHUFFLE
    for (; i + 8 <= rows; i += 8) {
        int64_t j = 0;
        for (; j + 8 <= columns; j += 8) transpose_8(in + i * in_row + j, in_row, out + j * out_row + i, out_row);
        for (; j < columns; j++)
            for (int64_t k = i; k < i + 8; k++) out[j * out_row + k] = in[k * in_row + j];
    }
#endif
    for (; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) out[j * out_row + i] = in[i * in_row + j];
}

/* An image as the caller stores it, [channel][row][column], to ours with its margin of zeros. */
static void take_image(const float *in, const Stage *stage, const Sizes *sizes, float *out)
{
    memset(out, 0, (size_t)sizes->image * sizeof(float));
    out += (stage->padding_height * sizes->padded_width + stage->padding_width) * stage->channels;
    for (int64_t row = 0; row < stage->height; row++, in += stage->width, out += sizes->padded_width * stage->channels)
        if (stage->channels == 1)
            memcpy(out, in, (size_t)stage->width * sizeof(float));
        else
            transpose(in, stage->height * stage->width, stage->channels, stage->width, out, stage->channels);
}

/* Panels of vectors for the outputs: [panel][kernel row][entry of the run][lane]. */
static void weights_for_outputs(const float *weights, const Stage *stage, const Sizes *sizes, float *out)
{
    int64_t step;
    for (int64_t first = 0; first < sizes->output_lanes; first += step) {
        step = vector_lanes(sizes->output_lanes - first);
        for (int64_t y = 0; y < stage->kernel_height; y++)
            for (int64_t x = 0; x < stage->kernel_width; x++)
                for (int64_t channel = 0; channel < stage->channels; channel++)
                    for (int64_t output = first; output < first + step; output++, out++) {
                        int64_t entry = (channel * stage->kernel_height + y) * stage->kernel_width + x;
                        *out = output < stage->outputs ? weights[output * sizes->entries + entry] : 0.0f;
                    }
    }
}

/* Panels of vectors for the input gradient: [panel][kernel row][output][entry of the run]. */
static void weights_for_inputs(const float *weights, const Stage *stage, const Sizes *sizes, float *out)
{
    int64_t step;
    for (int64_t first = 0; first < sizes->run_lanes; first += step) {
        step = vector_lanes(sizes->run_lanes - first);
        for (int64_t at = first; at < first + step; at++) {
            int64_t x = at / stage->channels, channel = at % stage->channels;
            for (int64_t y = 0; y < stage->kernel_height; y++)
                for (int64_t output = 0; output < stage->outputs; output++) {
                    int64_t entry = (channel * stage->kernel_height + y) * stage->kernel_width + x;
                    out[(y * stage->outputs + output) * step + at - first] =
                        at < sizes->run ? weights[output * sizes->entries + entry] : 0.0f;
                }
        }
        out += stage->kernel_height * stage->outputs * step;
    }
}

/* --- one stage of one example ------------------------------------------------------------------------------------- */

static void convolve_row(const float *image, const float *weights, const float *biases, const Stage *stage,
                         const Sizes *sizes, float *out)
{
    int64_t lanes = sizes->output_lanes, step, count;
    int64_t grey = stage->channels == 1 ? stage->kernel_width : 0;
    Operands p = {.left_row = stage->channels, .left_step = 1, .left_segment = sizes->padded_width * stage->channels,
                  .segments = stage->kernel_height, .depth = sizes->run, .out_row = lanes};
    for (int64_t lane = 0; lane < lanes; lane += step) {
        step = vector_lanes(lanes - lane);
        p.right = weights + lane * stage->kernel_height * sizes->run;
        p.right_step = step;
        p.start = biases + lane;
        for (int64_t at = 0; at < sizes->wide; at += count) {
            count = next_count(sizes->wide - at);
            p.left = image + at * stage->channels;
            p.out = out + at * lanes + lane;
            if (step == 8 && grey == 3)
                grey_products_3[count - 1](&p);
            else if (step == 8 && grey == 5)
                grey_products_5[count - 1](&p);
            else
                product_for(step, count)(&p);
        }
    }
}

/* Results of a stage, position by position, to the inner part of the image of the next one. */
static void hand_on(const float *pooled, int64_t row, const Sizes *sizes, const Stage *next, const Sizes *next_sizes,
                    float *image)
{
    image += ((row + next->padding_height) * next_sizes->padded_width + next->padding_width) * next->channels;
    for (int64_t column = 0; column < sizes->columns; column++)
        for (int64_t channel = 0; channel < next->channels; channel++)
            image[column * next->channels + channel] = pooled[column * sizes->output_lanes + channel];
}

static void weight_gradient(const float *image, const float *errors, const int32_t *place, const Stage *stage,
                            const Sizes *sizes, float *out)
{
    int64_t line = sizes->padded_width * stage->channels, lanes = sizes->output_lanes, step, high = 1, across;
    for (int64_t lane = 0; lane < lanes; lane += step) {
        step = vector_lanes(lanes - lane);
        for (int64_t y = 0; y < stage->kernel_height; y += high)
            for (int64_t at = 0; at < sizes->run; at += across) {
                Correlation *correlation =
                    correlation_for(step, sizes->run, sizes->run - at, stage->kernel_height - y, &high, &across);
                correlation(image + y * line + at, line, stage->channels, errors + lane, sizes->tall, sizes->wide,
                            lanes, place + y * sizes->run + at, sizes->run, out + lane);
            }
    }
}

/* The gradient of a stage's image without its margin, [row][column][lanes of the stage before]. */
static void input_gradient(const float *errors, const float *weights, const Stage *stage, const Sizes *sizes,
                           int64_t lanes, float *products, float *out)
{
    static const float zeros[16] = {0.0f};
    int64_t line = sizes->wide * sizes->output_lanes, step, count;
    Operands p = {.left_row = sizes->output_lanes, .left_step = 1, .left_segment = -line, .depth = stage->outputs,
                  .start = zeros, .out_row = sizes->run_lanes};
    for (int64_t row = 0; row < stage->height; row++, out += stage->width * lanes) {
        int64_t y = row + stage->padding_height;  /* rows of errors that meet it: y - kernel row */
        int64_t first = y >= sizes->tall ? y - sizes->tall + 1 : 0;
        int64_t last = y < stage->kernel_height ? y : stage->kernel_height - 1;
        p.segments = last >= first ? last - first + 1 : 0;
        for (int64_t lane = 0; lane < sizes->run_lanes; lane += step) {
            step = vector_lanes(sizes->run_lanes - lane);
            p.right = weights + lane * stage->kernel_height * stage->outputs + first * stage->outputs * step;
            p.right_step = step;
            for (int64_t at = 0; at < sizes->wide; at += count) {
                count = next_count(sizes->wide - at);
                p.left = errors + (y - first) * line + at * sizes->output_lanes;
                p.out = products + at * sizes->run_lanes + lane;
                product_for(step, count)(&p);
            }
        }
        for (int64_t column = 0; column < stage->width; column++) {
            int64_t x = column + stage->padding_width;
            int64_t from = x >= sizes->wide ? x - sizes->wide + 1 : 0;
            int64_t to = x < stage->kernel_width ? x : stage->kernel_width - 1;
            for (int64_t lane = 0; lane < lanes; lane += LANES) {
                v8 sum = {0.0f};
                for (int64_t at = from; at <= to; at++)
                    sum += *(const v8 *)(products + (x - at) * sizes->run_lanes + at * stage->channels + lane);
                *(v8 *)(out + column * lanes + lane) = sum;
            }
        }
    }
}

INLINE void add_square(const float *values, d8 *sum)
{
    d8 value = __builtin_convertvector(*(const v8 *)values, d8);
    *sum += value * value;
}

/* Of a number of floats that LANES divides. */
static double sum_of_squares(const float *values, int64_t count)
{
    d8 sums[4] = {{0.0}, {0.0}, {0.0}, {0.0}};  /* several, because each waits for itself */
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        UNROLL for (int j = 0; j < 4; j++) add_square(values + i + j * LANES, sums + j);
    for (; i < count; i += LANES) add_square(values + i, sums);
    sums[0] += sums[1] + (sums[2] + sums[3]);
    double sum = 0.0;
    for (int lane = 0; lane < 8; lane++) sum += sums[0][lane];
    return sum;
}

/* --- sums over a batch in double precision ------------------------------------------------------------------------ */

/* acc[t * acc_row + j] += sum over examples of left[example][t] * right[example][j], for t < count and j < TILE. Products
 * of two floats are exact in double precision; `left` holds floats that are widened already, in any order. */
typedef void DoubleProduct(const double *left, int64_t left_row, int64_t left_column, const float *right, int64_t right_row, int64_t batch,
                           double *acc, int64_t acc_row);

#define TILE 16
#define DEFINE_DOUBLE_PRODUCT(unused, count)                                                                           \
    static void double_product_##count(const double *left, int64_t left_row, int64_t left_column, const float *right,  \
                                       int64_t right_row, int64_t batch, double *acc, int64_t acc_row)                 \
    {                                                                                                                  \
        d8 low[count], high[count];                                                                                    \
        UNROLL for (int t = 0; t < count; t++) {                                                                       \
            low[t] = *(const d8 *)(acc + t * acc_row);                                                                 \
            high[t] = *(const d8 *)(acc + t * acc_row + 8);                                                            \
        }                                                                                                              \
        for (int64_t example = 0; example < batch; example++, left += left_row, right += right_row) {                  \
            d8 one = __builtin_convertvector(*(const v8 *)right, d8);                                                  \
            d8 two = __builtin_convertvector(*(const v8 *)(right + 8), d8);                                            \
            UNROLL for (int t = 0; t < count; t++) {                                                                   \
                low[t] += one * left[t * left_column];                                                                 \
                high[t] += two * left[t * left_column];                                                                \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int t = 0; t < count; t++) {                                                                       \
            *(d8 *)(acc + t * acc_row) = low[t];                                                                       \
            *(d8 *)(acc + t * acc_row + 8) = high[t];                                                                  \
        }                                                                                                              \
    }

/* The same for few examples, which are added up in single precision and then widened. The order is that of the examples,
 * for all entries: partial sums of b vectors no longer than c lose at most b (b + 1) / 2 c units together. */
typedef void FloatProduct(const float *left, int64_t left_row, int64_t left_column, const float *right,
                          int64_t right_row, int64_t batch, double *acc, int64_t acc_row);

#if MANY_REGISTERS
typedef v16 wide;
#else
typedef v8 wide;
#endif
#define HALF ((int64_t)(sizeof(wide) / sizeof(float)))
#define FLOAT_TILE (2 * HALF)

INLINE void widen(wide values, double *acc)
{
    float kept[HALF];
    *(wide *)kept = values;
    UNROLL for (int at = 0; at < HALF; at += 8)
        *(d8 *)(acc + at) += __builtin_convertvector(*(const v8 *)(kept + at), d8);
}

#define DEFINE_FLOAT_PRODUCT(unused, count)                                                                            \
    static void float_product_##count(const float *left, int64_t left_row, int64_t left_column, const float *right,    \
                                      int64_t right_row, int64_t batch, double *acc, int64_t acc_row)                  \
    {                                                                                                                  \
        wide low[count], high[count];                                                                                  \
        UNROLL for (int t = 0; t < count; t++) low[t] = high[t] = (wide){0.0f};                                        \
        for (int64_t example = 0; example < batch; example++, left += left_row, right += right_row) {                  \
            wide one = *(const wide *)right, two = *(const wide *)(right + HALF);                                      \
            UNROLL for (int t = 0; t < count; t++) {                                                                   \
                low[t] += one * left[t * left_column];                                                                 \
                high[t] += two * left[t * left_column];                                                                \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int t = 0; t < count; t++) {                                                                       \
            widen(low[t], acc + t * acc_row);                                                                          \
            widen(high[t], acc + t * acc_row + HALF);                                                                  \
        }                                                                                                              \
    }

#define DOUBLE_PRODUCT_ENTRY(unused, count) double_product_##count,
#define FLOAT_PRODUCT_ENTRY(unused, count) float_product_##count,
#if MANY_REGISTERS
#define MOST_LINES MOST_SUMS
#define FOR_EACH_LINE(f) FOR_EACH_COUNT(f, )
#else
#define MOST_LINES 4
#define FOR_EACH_LINE(f) f(, 1) f(, 2) f(, 3) f(, 4)
#endif
FOR_EACH_LINE(DEFINE_DOUBLE_PRODUCT)
FOR_EACH_LINE(DEFINE_FLOAT_PRODUCT)
static DoubleProduct *const double_products[] = {FOR_EACH_LINE(DOUBLE_PRODUCT_ENTRY)};
static FloatProduct *const float_products[] = {FOR_EACH_LINE(FLOAT_PRODUCT_ENTRY)};

/* Examples at a time: few enough that their rows stay in the first cache. */
#define FLOATS_AT_A_TIME 3000
#define MOST_AT_A_TIME 32

/* How the numbers of one model lie in memory. */
typedef struct {
    const float *left, *right;
    const double *widened;             /* `left` in double precision, in the same order */
    int64_t left_row, left_column, outputs, features;
} Factors;

/* Adds to acc[t][j], t < count and j < columns, what examples `first` to `first + some` give from line o and column f on. */
static void add_products(const Factors *p, int64_t together, int64_t first, int64_t some, int64_t o, int64_t count,
                         const float *right, int64_t right_row, double *acc, int64_t acc_row)
{
    int64_t at = first * p->left_row + o * p->left_column;
    if (together == 0)
        for (int64_t half = 0; half < FLOAT_TILE; half += TILE)
            double_products[count - 1](p->widened + at, p->left_row, p->left_column, right + half, right_row, some,
                                       acc + half, acc_row);
    else
        for (int64_t done = 0, step; done < some; done += step) {
            step = some - done < together ? some - done : together;
            float_products[count - 1](p->left + at + done * p->left_row, p->left_row, p->left_column,
                                      right + done * right_row, right_row, step, acc, acc_row);
        }
}

/* The last columns of a matrix, fewer than a tile: by way of a whole tile, of which the others are dropped. */
static void add_tail(const Factors *p, int64_t together, int64_t first, int64_t some, int64_t o, int64_t count,
                     int64_t f, double *out)
{
    double sums[MOST_LINES * FLOAT_TILE] = {0.0};
    float tail[MOST_AT_A_TIME * FLOAT_TILE];
    const float *right = p->right + first * p->features;
    int64_t columns = p->features - f, shift = 0;
    if (p->features >= FLOAT_TILE) {
        shift = FLOAT_TILE - columns;  /* the tile that ends with the last column */
        add_products(p, together, first, some, o, count, right + f - shift, p->features, sums, FLOAT_TILE);
    } else {
        memset(tail, 0, sizeof tail);
        for (int64_t row = 0; row < some; row++)
            memcpy(tail + row * FLOAT_TILE, right + row * p->features + f, (size_t)columns * sizeof(float));
        add_products(p, together, first, some, o, count, tail, FLOAT_TILE, sums, FLOAT_TILE);
    }
    for (int64_t t = 0; t < count; t++)
        for (int64_t j = 0; j < columns; j++) out[(o + t) * p->features + f + j] += sums[t * FLOAT_TILE + shift + j];
}

static void sum_products(const Factors *p, int64_t together, int64_t batch, double *out)
{
    int64_t features = p->features, whole = features / FLOAT_TILE * FLOAT_TILE, some, count;
    int64_t most = FLOATS_AT_A_TIME / features;
    most = most < 16 ? 16 : most > MOST_AT_A_TIME ? MOST_AT_A_TIME : most;
    if (together > 0) most -= most % together;  /* whole parts */
    memset(out, 0, (size_t)(p->outputs * features) * sizeof(double));
    for (int64_t first = 0; first < batch; first += some) {
        some = batch - first < most ? batch - first : most;
        const float *right = p->right + first * features;
        /* The next rows: tiles run across them, which no processor foresees. */
        for (int64_t at = some * features; at < 2 * some * features; at += 16) __builtin_prefetch(right + at, 0, 2);
        for (int64_t o = 0; o < p->outputs; o += count) {
            int64_t parts = (p->outputs - o + MOST_LINES - 1) / MOST_LINES;
            count = (p->outputs - o + parts - 1) / parts;
            for (int64_t f = 0; f < whole; f += FLOAT_TILE)
                add_products(p, together, first, some, o, count, right + f, features, out + o * features + f, features);
            if (whole < features) add_tail(p, together, first, some, o, count, whole, out);
        }
    }
}

/* --- one example through a chain of stages ------------------------------------------------------------------------ */

#define MOST_STAGES 16

/* A chain, what follows from its weights, and memory to work in. */
typedef struct {
    const Stage *stages;
    int64_t count, saved;              /* floats of one example that go from `forward` to `backward` */
    Sizes sizes[MOST_STAGES];
    float *forward[MOST_STAGES], *starts[MOST_STAGES], *backward[MOST_STAGES];
    int32_t *places[MOST_STAGES];
    float *gradients[MOST_STAGES];     /* of the example that was last: [entry][lane], then the biases' [lane] */
    float *image, *pooled, *errors, *results, *products;
} Chain;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static float *carve(float *memory, int64_t *used, int64_t floats)
{
    float *start = memory == NULL ? NULL : memory + *used;
    *used += rounded(floats, 16);
    return start;
}

static int64_t gradient_floats(const Sizes *s) { return (s->entries + 1) * s->output_lanes; }

/* Lays a chain out in memory, and says how many floats that takes; without memory it only counts. */
static int64_t lay_out(Chain *chain, const Stage *stages, int64_t count, float *memory)
{
    int64_t used = 0, errors = 0, results = 0, products = 0;
    chain->stages = stages;
    chain->count = count;
    chain->saved = 0;
    for (int64_t i = 0; i < count; i++) {
        Sizes s = chain->sizes[i] = sizes_of(stages + i);
        chain->saved += s.activations + (i > 0 ? s.image : 0);
        chain->forward[i] = carve(memory, &used, s.output_lanes * s.entries);
        chain->starts[i] = carve(memory, &used, s.output_lanes);
        chain->backward[i] = carve(memory, &used, s.run_lanes * stages[i].kernel_height * stages[i].outputs);
        chain->places[i] = (int32_t *)carve(memory, &used, s.entries);
        chain->gradients[i] = carve(memory, &used, gradient_floats(&s));
        errors = larger(errors, s.activations);
        results = larger(results, larger(s.rows * s.columns * s.output_lanes,
                                         stages[i].height * stages[i].width * rounded(stages[i].channels, LANES)));
        products = larger(products, s.wide * s.run_lanes);
    }
    chain->image = carve(memory, &used, chain->sizes[0].image);
    chain->pooled = carve(memory, &used, results);
    chain->errors = carve(memory, &used, errors);
    chain->results = carve(memory, &used, results);
    chain->products = carve(memory, &used, products);  /* the last: it is read a little beyond its end */
    used += 64;
    if (memory != NULL) memset(memory, 0, (size_t)used * sizeof(float));
    return used;
}

static void take_weights(Chain *chain, const float *const *weights, const float *const *biases)
{
    for (int64_t i = 0; i < chain->count; i++) {
        const Stage *stage = chain->stages + i;
        const Sizes *s = chain->sizes + i;
        weights_for_outputs(weights[i], stage, s, chain->forward[i]);
        memcpy(chain->starts[i], biases[i], (size_t)stage->outputs * sizeof(float));
    }
}

static void take_weights_back(Chain *chain, const float *const *weights)
{
    for (int64_t i = 0; i < chain->count; i++) {
        const Stage *stage = chain->stages + i;
        const Sizes *s = chain->sizes + i;
        if (i > 0) weights_for_inputs(weights[i], stage, s, chain->backward[i]);
        for (int64_t y = 0; y < stage->kernel_height; y++)
            for (int64_t at = 0; at < s->run; at++)
                chain->places[i][y * s->run + at] = (int32_t)((at % stage->channels * stage->kernel_height + y)
                                                              * stage->kernel_width + at / stage->channels);
    }
}

/* `saved` gets the activations of each stage, and the images of all stages but the first. */
static void forward(const Chain *chain, const float *image, float *saved, float *out)
{
    take_image(image, chain->stages, chain->sizes, chain->image);
    float *memory = saved, *in = chain->image, *pooled = chain->pooled;
    for (int64_t i = 0; i < chain->count; i++) {
        const Stage *stage = chain->stages + i;
        const Sizes *s = chain->sizes + i;
        int more = i + 1 < chain->count;
        float *activations = memory, *next = memory + s->activations;
        if (more && (stage[1].padding_height || stage[1].padding_width))
            memset(next, 0, (size_t)s[1].image * sizeof(float));
        int64_t line = s->wide * s->output_lanes, block = stage->window_height * line;
        for (int64_t row = 0; row < s->rows; row++) {
            float *values = activations + row * block;
            for (int64_t y = 0; y < stage->window_height; y++)
                convolve_row(in + (row * stage->window_height + y) * s->padded_width * stage->channels,
                             chain->forward[i], chain->starts[i], stage, s, values + y * line);
            activate(values, block, stage->relu);
            if (more) {
                pool(values, stage, s, pooled);
                hand_on(pooled, row, s, stage + 1, s + 1, next);
            } else {
                pool(values, stage, s, pooled + row * s->columns * s->output_lanes);
            }
        }
        memory = next + (more ? s[1].image : 0);
        in = next;
    }
    const Sizes *end = chain->sizes + chain->count - 1;
    int64_t positions = end->rows * end->columns;
    transpose(pooled, end->output_lanes, positions, chain->stages[chain->count - 1].outputs, out, positions);
}

/* Leaves the gradients of an example in `chain->gradients`, 0 in lanes in excess. */
static void backward(const Chain *chain, const float *image, const float *saved, const float *gradients)
{
    int64_t last = chain->count - 1, positions = chain->sizes[last].rows * chain->sizes[last].columns;
    take_image(image, chain->stages, chain->sizes, chain->image);
    transpose(gradients, positions, chain->stages[last].outputs, positions, chain->results,
              chain->sizes[last].output_lanes);
    const float *memory = saved + chain->saved;
    for (int64_t i = last; i >= 0; i--) {
        const Stage *stage = chain->stages + i;
        const Sizes *s = chain->sizes + i;
        const float *activations = memory - s->activations;
        const float *in = i > 0 ? activations - s->image : chain->image;
        memory = in;
        unpool(chain->results, activations, stage, s, chain->errors,
               chain->gradients[i] + s->entries * s->output_lanes);
        weight_gradient(in, chain->errors, chain->places[i], stage, s, chain->gradients[i]);
        if (i > 0)
            input_gradient(chain->errors, chain->backward[i], stage, s, s[-1].output_lanes, chain->products,
                           chain->results);
    }
}

/* Gradients of one stage in the order of its parameters. */
static void give_gradients(const Chain *chain, int64_t i, const float *gradients, float *weights, float *biases)
{
    const Sizes *s = chain->sizes + i;
    transpose(gradients, s->output_lanes, s->entries, chain->stages[i].outputs, weights, s->entries);
    memcpy(biases, gradients + s->entries * s->output_lanes, (size_t)chain->stages[i].outputs * sizeof(float));
}

/* --- whole networks: stages, then linear layers, and the clipped sum of a batch ----------------------------------- */

/* Examples at a time. What they need fits into the second cache; linear layers have a lane for each of them, in
 * matrices [feature][example], and the same numbers once more by example, for sums over examples. */
#define SOME 16
#define MOST_LAYERS 16

/* A linear layer with a bias, and tanh or relu after it; after the last of a network there is nothing. */
typedef struct {
    int64_t features, outputs, relu;
} Layer;

/* How gradients are clipped; see `clipping.Clipping.factors`. */
typedef struct {
    double longest, smallest_factor, largest_square;
} Limits;

typedef struct {
    Chain chain;
    const Layer *layers;
    int64_t count, classes, lanes;     /* lanes of which some have examples */
    int64_t step[MOST_LAYERS];         /* floats from one example to the next */
    float *columns[MOST_LAYERS];       /* inputs of the layers, [feature][example] */
    float *rows[MOST_LAYERS];          /* the same, [example][feature], and a 1 for the bias */
    float *errors[MOST_LAYERS];        /* gradients of the outputs, [output][example] */
    float *sums[MOST_LAYERS], *stage_sums[MOST_STAGES];  /* one after another in memory */
    int64_t sums_floats;
    float *saved, *gradients, *by_example;  /* gradients of the first layer's inputs */
} Network;

static int64_t lay_out_network(Network *network, const Stage *stages, int64_t stage_count, const Layer *layers,
                               int64_t layer_count, float *memory)
{
    int64_t used = lay_out(&network->chain, stages, stage_count, memory), first = used;
    network->layers = layers;
    network->count = layer_count;
    network->classes = layers[layer_count - 1].outputs;
    for (int64_t i = 0; i < stage_count; i++)
        network->stage_sums[i] = carve(memory, &used, gradient_floats(network->chain.sizes + i));
    for (int64_t i = 0; i < layer_count; i++) {
        network->step[i] = rounded(layers[i].features + 1, LANES);
        network->sums[i] = carve(memory, &used, layers[i].outputs * network->step[i]);
    }
    network->sums_floats = used - first;
    for (int64_t i = 0; i < layer_count; i++) {
        network->columns[i] = carve(memory, &used, layers[i].features * SOME);
        network->rows[i] = carve(memory, &used, network->step[i] * SOME);
        network->errors[i] = carve(memory, &used, layers[i].outputs * SOME);
    }
    network->gradients = carve(memory, &used, layers->features * SOME);
    network->by_example = carve(memory, &used, layers->features * SOME);
    if (memory != NULL) memset(memory + first, 0, (size_t)(used - first) * sizeof(float));
    network->saved = carve(memory, &used, network->chain.saved * SOME);
    return used;
}

/* out[t][j] += sum over k < depth of left[t * left_row + k * left_step] * right[k][j], for t < rows and j < lanes. */
static void multiply(const float *left, int64_t left_row, int64_t left_step, const float *right, int64_t right_step,
                     int64_t depth, float *out, int64_t out_row, int64_t rows, int64_t lanes)
{
    int64_t step, count;
    for (int64_t lane = 0; lane < lanes; lane += step) {
        step = vector_lanes(lanes - lane);
        for (int64_t t = 0; t < rows; t += count) {
            count = next_count(rows - t);
            float *to = out + t * out_row + lane;
            Operands p = {left + t * left_row, left_row, left_step, 0, right + lane, right_step, 1, depth, to, out_row,
                          to, out_row};
            product_for(step, count)(&p);
        }
    }
}

/* From the inputs of the first layer, by example, to logits in place of the last layer's errors. */
static void forward_layers(const Network *network, const float *weights, const int64_t *places)
{
    transpose(network->rows[0], network->step[0], SOME, network->layers->features, network->columns[0], SOME);
    for (int64_t i = 0; i < network->count; i++) {
        const Layer *layer = network->layers + i;
        const float *bias = weights + places[2 * i + 1];
        int more = i + 1 < network->count;
        float *out = more ? network->columns[i + 1] : network->errors[i];
        for (int64_t o = 0; o < layer->outputs; o++)
            for (int64_t e = 0; e < SOME; e++) out[o * SOME + e] = bias[o];
        multiply(weights + places[2 * i], layer->features, 1, network->columns[i], SOME, layer->features, out, SOME,
                 layer->outputs, network->lanes);
        if (!more) break;
        activate(out, layer->outputs * SOME, layer->relu);
        transpose(out, SOME, layer->outputs, SOME, network->rows[i + 1], network->step[i + 1]);
    }
}

/* Logits to gradients of the cross-entropy: softmax minus the label, times the weight of the label. */
static void loss_gradients(float *logits, int64_t classes, const int64_t *labels, const float *loss_weights)
{
    for (int64_t lane = 0; lane < SOME; lane += LANES) {
        v8 most = *(v8 *)(logits + lane), total = {0.0f}, scale;
        for (int64_t c = 1; c < classes; c++) {
            v8 value = *(v8 *)(logits + c * SOME + lane);
            i8 above = value > most;
            most = (v8)(((i8)value & above) | ((i8)most & ~above));
        }
        for (int64_t c = 0; c < classes; c++) {
            v8 *value = (v8 *)(logits + c * SOME + lane);
            *value = exp_of(*value - most);
            total += *value;
        }
        for (int64_t e = 0; e < LANES; e++) scale[e] = loss_weights[labels[lane + e]];
        for (int64_t c = 0; c < classes; c++) *(v8 *)(logits + c * SOME + lane) *= scale / total;
        for (int64_t e = lane; e < lane + LANES; e++) logits[labels[e] * SOME + e] -= loss_weights[labels[e]];
    }
}

static void squares_of_columns(const float *columns, int64_t rows, double start, double *squares)
{
    for (int64_t lane = 0; lane < SOME; lane += LANES) {
        d8 sum = (d8){0.0} + start;
        for (int64_t row = 0; row < rows; row++) add_square(columns + row * SOME + lane, &sum);
        *(d8 *)(squares + lane) = sum;
    }
}

/* From the gradients of the logits to those of the first layer's inputs; adds to the squared norm of each example. */
static void backward_layers(const Network *network, const float *weights, const int64_t *places, const Limits *limits,
                            double *squares)
{
    double inputs[SOME], outputs[SOME];
    for (int64_t i = network->count - 1; i >= 0; i--) {
        const Layer *layer = network->layers + i;
        /* |g a^T|^2 = |g|^2 |a|^2, and a bias is one more input that is always 1. */
        squares_of_columns(network->columns[i], layer->features, 1.0, inputs);
        squares_of_columns(network->errors[i], layer->outputs, 0.0, outputs);
        for (int64_t e = 0; e < SOME; e++)
            squares[e] += inputs[e] <= limits->largest_square && outputs[e] <= limits->largest_square
                              ? inputs[e] * outputs[e] : (double)__builtin_inff();
        float *below = i > 0 ? network->errors[i - 1] : network->gradients;
        memset(below, 0, (size_t)(layer->features * SOME) * sizeof(float));
        multiply(weights + places[2 * i], 1, layer->features, network->errors[i], SOME, layer->outputs, below, SOME,
                 layer->features, network->lanes);
        for (int64_t at = 0; i > 0 && at < layer->features * SOME; at += LANES) {
            v8 *error = (v8 *)(below + at), value = *(const v8 *)(network->columns[i] + at);
            if (layer[-1].relu)
                *error = (v8)((i8)*error & ~(i8)(value <= (v8){0.0f}));
            else
                *error -= *error * value * value;
        }
    }
    int64_t features = network->layers->features;
    transpose(network->gradients, SOME, features, SOME, network->by_example, features);
}

/* What a gradient is multiplied by, 0 where its norm is not finite. */
static float clipping_factor(double square, const Limits *limits)
{
    double factor = limits->longest / __builtin_sqrt(square);
    if (!(square <= 0x1p1023)) return 0.0f;
    factor = factor < 1.0 ? factor : 1.0;
    return factor < limits->smallest_factor ? 0.0f : (float)factor;
}

static void add_stages(const Network *network, float factor)
{
    for (int64_t i = 0; i < network->chain.count; i++) {
        const float *gradients = network->chain.gradients[i];
        float *sums = network->stage_sums[i];
        for (int64_t at = 0; at < gradient_floats(network->chain.sizes + i); at++) sums[at] += factor * gradients[at];
    }
}

/* A factor of 0 does not undo what is infinite: those are made 0 first. */
static void add_layers(const Network *network, const float *factors)
{
    for (int64_t i = 0; i < network->count; i++) {
        int64_t features = network->layers[i].features, outputs = network->layers[i].outputs, step = network->step[i];
        float *errors = network->errors[i];
        for (int64_t e = 0; e < SOME; e++) {
            float *row = network->rows[i] + e * step;
            row[features] = 1.0f;
            if (factors[e] == 0.0f) memset(row, 0, (size_t)step * sizeof(float));
        }
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t e = 0; e < SOME; e++)
                errors[o * SOME + e] = factors[e] == 0.0f ? 0.0f : factors[e] * errors[o * SOME + e];
        multiply(errors, SOME, 1, network->rows[i], step, network->lanes, network->sums[i], step, outputs, step);
    }
}

static void give_sums(const Network *network, const int64_t *places, float *out)
{
    int64_t stages = network->chain.count;
    for (int64_t i = 0; i < stages; i++)
        give_gradients(&network->chain, i, network->stage_sums[i], out + places[2 * i], out + places[2 * i + 1]);
    for (int64_t i = 0; i < network->count; i++) {
        const Layer *layer = network->layers + i;
        float *weights = out + places[2 * (stages + i)], *biases = out + places[2 * (stages + i) + 1];
        for (int64_t o = 0; o < layer->outputs; o++) {
            const float *row = network->sums[i] + o * network->step[i];
            memcpy(weights + o * layer->features, row, (size_t)layer->features * sizeof(float));
            biases[o] = row[layer->features];
        }
    }
}

/* Makes ready for the examples of a model, whose weights and biases are at these places. */
static void take_model(Network *network, const Stage *stages, int64_t stage_count, const Layer *layers,
                       int64_t layer_count, const int64_t *places, const float *weights, float *scratch)
{
    const float *stage_weights[MOST_STAGES], *stage_biases[MOST_STAGES];
    lay_out_network(network, stages, stage_count, layers, layer_count, scratch);
    for (int64_t i = 0; i < stage_count; i++) {
        stage_weights[i] = weights + places[2 * i];
        stage_biases[i] = weights + places[2 * i + 1];
    }
    take_weights(&network->chain, stage_weights, stage_biases);
    take_weights_back(&network->chain, stage_weights);
}

/* Adds up to SOME examples, given by their inputs and labels: each clipped, or, where there are shares, each times its
 * share. Returns 1 if a share was asked of a gradient that is not finite, and then adds nothing of it. */
static int add_some(Network *network, const float *weights, const int64_t *places, const float *const *inputs,
                    const int64_t *labels, int64_t count, const float *loss_weights, const Limits *limits,
                    const float *shares)
{
    int is_broken = 0;
    const Chain *chain = &network->chain;
    double squares[SOME] = {0.0};
    float factors[SOME] = {0.0f};
    network->lanes = rounded(count, LANES);
    for (int64_t e = 0; e < count; e++)
        forward(chain, inputs[e], network->saved + e * chain->saved, network->rows[0] + e * network->step[0]);
    places += 2 * chain->count;
    forward_layers(network, weights, places);
    loss_gradients(network->errors[network->count - 1], network->classes, labels, loss_weights);
    backward_layers(network, weights, places, limits, squares);
    for (int64_t e = 0; e < count; e++) {
        backward(chain, inputs[e], network->saved + e * chain->saved,
                 network->by_example + e * network->layers->features);
        for (int64_t i = 0; i < chain->count; i++)
            squares[e] += sum_of_squares(chain->gradients[i], gradient_floats(chain->sizes + i));
        int is_finite = squares[e] <= 0x1p1023;
        if (shares == NULL)
            factors[e] = clipping_factor(squares[e], limits);
        else
            factors[e] = is_finite ? shares[e] : 0.0f;
        is_broken |= shares != NULL && !is_finite;
        if (factors[e] > 0.0f) add_stages(network, factors[e]);
    }
    add_layers(network, factors);
    return is_broken;
}

static void forget_sums(const Network *network)
{
    memset(network->stage_sums[0], 0, (size_t)network->sums_floats * sizeof(float));
}

/* Puts the mean gradient of one unit, of which `rows` examples with a share above 0 count, into `mean`. Returns 0; 1 if
 * a label is none; -1 if the unit has no examples, or one whose gradient is not finite. */
static int unit_mean(Network *network, const float *weights, const int64_t *places, const float *inputs, int64_t input,
                     const int64_t *labels, const float *shares, int64_t rows, const float *loss_weights,
                     const Limits *limits, float *mean)
{
    const float *some[SOME];
    float some_shares[SOME];
    int64_t some_labels[SOME] = {0}, count = 0, all = 0;
    int is_broken = 0;
    forget_sums(network);
    for (int64_t row = 0; row < rows; row++) {
        if (shares[row] > 0.0f) {
            if (labels[row] < 0 || labels[row] >= network->classes) return 1;
            some[count] = inputs + row * input;
            some_shares[count] = shares[row];
            some_labels[count++] = labels[row];
            all++;
        }
        if (count == 0 || (count < SOME && row + 1 < rows)) continue;
        is_broken |= add_some(network, weights, places, some, some_labels, count, loss_weights, limits, some_shares);
        count = 0;
    }
    if (all == 0 || is_broken) return -1;
    give_sums(network, places, mean);
    return 0;
}

/* --- noise: see `normals.py` -------------------------------------------------------------------------------------- */

#define PAIRS 64

/* Products of the lower halves of 64-bit numbers. */
INLINE w8 product_of_halves(w8 a, uint64_t b)
{
#if defined(__AVX2__) && !defined(__AVX512DQ__)  /* else the compiler multiplies all halves */
    w4 halves[2], factor = (w4){0} + b;
    *(w8 *)halves = a;
    UNROLL for (int i = 0; i < 2; i++) halves[i] = (w4)__builtin_ia32_pmuludq256((i8)halves[i], (i8)factor);
    return *(w8 *)halves;
#else
    return (a & 0xffffffff) * b;
#endif
}

/* Three words of Philox 4x32-10 for the counters (first, step, key[2], 0), (first + 1, ...), ...; upper halves of 64
 * bits hold nothing of interest. */
INLINE void philox(const uint32_t *key, uint32_t first, uint32_t step, u8 *one, u8 *two, u8 *three)
{
    w8 a = (w8){0, 1, 2, 3, 4, 5, 6, 7} + first, b = (w8){0} + step, c = (w8){0} + key[2], d = {0};
    uint32_t k = key[0], l = key[1];
    UNROLL for (int round = 0; round < 10; round++, k += 0x9E3779B9u, l += 0xBB67AE85u) {
        w8 left = product_of_halves(a, 0xD2511F53u), right = product_of_halves(c, 0xCD9E8D57u);
        a = (right >> 32) ^ b ^ k;
        b = right;
        c = (left >> 32) ^ d ^ l;
        d = left;
    }
    *one = __builtin_convertvector(a, u8);
    *two = __builtin_convertvector(b, u8);
    *three = __builtin_convertvector(c, u8);
}

/* log(x) = n ln 2 + log(1 + r), x = 2^n (1 + r), for x >= 2^-126; Cephes' polynomial. */
INLINE v8 log_of(v8 x)
{
    i8 number = ((i8)x - 0x3f3504f3) >> 23;
    v8 rest = (v8)((i8)x - (number << 23)) - 1.0f, n = __builtin_convertvector(number, v8), square = rest * rest;
    v8 sum = rest * 7.0376836292e-2f - 1.1514610310e-1f;
    sum = sum * rest + 1.1676998740e-1f;
    sum = sum * rest - 1.2420140846e-1f;
    sum = sum * rest + 1.4249322787e-1f;
    sum = sum * rest - 1.6668057665e-1f;
    sum = sum * rest + 2.0000714765e-1f;
    sum = sum * rest - 2.4999993993e-1f;
    sum = sum * rest + 3.3333331174e-1f;
    sum = sum * (square * rest) + n * -2.12194440e-4f;
    return (sum - square / 2.0f + rest) + n * 0.693359375f;
}

/* Standard normals at 2 * PAIRS places from 2 * first on, those of even places and those of odd ones apart. */
static void normal_pairs(const uint32_t *key, uint32_t first, uint32_t step, float *even, float *odd)
{
    for (int at = 0; at < PAIRS; at += LANES) {
        u8 one, two, three;
        philox(key, first + (uint32_t)at, step, &one, &two, &three);
        /* 64 bits for the radius: with 32 it would end at 6.7 standard deviations. */
        v8 uniform = __builtin_convertvector(one, v8) * 0x1p-32f;
        uniform += __builtin_convertvector(two, v8) * 0x1p-64f + 0x1p-65f;
        v8 radius = log_of(clamp(uniform, 0.0f, 1.0f)) * -2.0f;
        UNROLL for (int lane = 0; lane < LANES; lane++) radius[lane] = __builtin_sqrtf(radius[lane]);
        /* The angle as a quarter of a turn, and an eighth at most in either direction; Cephes' polynomials. */
        u8 quarter = (three + 0x20000000u) >> 30;
        v8 angle = __builtin_convertvector((i8)(three - (quarter << 30)), v8) * 1.46291808e-9f, square = angle * angle;
        v8 sine = square * -1.9515295891e-4f + 8.3321608736e-3f;
        sine = (sine * square - 1.6666654611e-1f) * (square * angle) + angle;
        v8 cosine = square * 2.443315711809948e-5f - 1.388731625493765e-3f;
        cosine = (cosine * square + 4.166664568298827e-2f) * (square * square) - square / 2.0f + 1.0f;
        i8 turned = -(i8)(quarter & 1);
        i8 x = ((i8)sine & turned) | ((i8)cosine & ~turned), y = ((i8)cosine & turned) | ((i8)sine & ~turned);
        *(v8 *)(even + at) = radius * (v8)(x ^ (i8)(((quarter + 1) & 2) << 30));
        *(v8 *)(odd + at) = radius * (v8)(y ^ (i8)((quarter & 2) << 30));
    }
}

/* --- what Python calls -------------------------------------------------------------------------------------------- */

/* Floats of one example that go from `forward` to `example_gradients`. */
int64_t mithridate_saved_floats(const Stage *stages, int64_t count)
{
    Chain chain;
    lay_out(&chain, stages, count, NULL);
    return chain.saved;
}

/* Floats of working memory of either call. */
int64_t mithridate_scratch_floats(const Stage *stages, int64_t count)
{
    Chain chain;
    return lay_out(&chain, stages, count, NULL);
}

/* `saved` moves on by saved_step floats after each example: 0 where nobody will ask for gradients. */
void mithridate_forward(const Stage *stages, int64_t count, const float *const *weights, const float *const *biases,
                        const float *images, int64_t batch, float *saved, int64_t saved_step, float *scratch,
                        float *out)
{
    Chain chain;
    lay_out(&chain, stages, count, scratch);
    take_weights(&chain, weights, biases);
    const Stage *last = stages + count - 1;
    int64_t image = stages->channels * stages->height * stages->width;
    int64_t results = chain.sizes[count - 1].rows * chain.sizes[count - 1].columns * last->outputs;
    for (int64_t example = 0; example < batch; example++)
        forward(&chain, images + example * image, saved + example * saved_step, out + example * results);
}

/* weight_gradients[i]: batch x entries of all weights; bias_gradients[i]: batch x outputs; squares[i]: batch. */
void mithridate_example_gradients(const Stage *stages, int64_t count, const float *const *weights, const float *images,
                                  int64_t batch, const float *saved, int64_t saved_step, const float *gradients,
                                  float *scratch, float *const *weight_gradients, float *const *bias_gradients,
                                  double *const *squares)
{
    Chain chain;
    lay_out(&chain, stages, count, scratch);
    take_weights_back(&chain, weights);
    const Stage *last = stages + count - 1;
    int64_t image = stages->channels * stages->height * stages->width;
    int64_t results = chain.sizes[count - 1].rows * chain.sizes[count - 1].columns * last->outputs;
    for (int64_t example = 0; example < batch; example++) {
        backward(&chain, images + example * image, saved + example * saved_step, gradients + example * results);
        for (int64_t i = 0; i < count; i++) {
            const Sizes *s = chain.sizes + i;
            give_gradients(&chain, i, chain.gradients[i],
                           weight_gradients[i] + example * s->entries * stages[i].outputs,
                           bias_gradients[i] + example * stages[i].outputs);
            squares[i][example] = sum_of_squares(chain.gradients[i], gradient_floats(s));
        }
    }
}

/* For each model, out[o][f] = sum over its first `extent` examples of left[example][o] * right[example][f], example after
 * example: `together` of them in single precision (at most 16; 0 for none), these sums in double precision. In `left` and
 * `widened`, models lie left_model apart, examples left_row and outputs left_column; in `out`, models out_row. */
void mithridate_sum_products(const float *left, const double *widened, int64_t left_model, int64_t left_row,
                             int64_t left_column, const float *right, const int32_t *extents, int64_t models,
                             int64_t batch, int64_t outputs, int64_t features, int64_t together, double *out,
                             int64_t out_row)
{
    for (int64_t model = 0; model < models; model++) {
        Factors factors = {left + model * left_model, right + model * batch * features, widened, left_row, left_column,
                           outputs, features};
        if (together == 0) factors.widened = widened + model * left_model;
        sum_products(&factors, together, extents[model], out + model * out_row);
    }
}

/* Floats of working memory of the next call. */
int64_t mithridate_network_floats(const Stage *stages, int64_t stage_count, const Layer *layers, int64_t layer_count)
{
    Network network;
    return lay_out_network(&network, stages, stage_count, layers, layer_count, NULL);
}

/* For each model the sum over its present examples of their clipped gradients. `places` holds where the weights and the
 * biases of each stage and layer are among the `parameters` of a model. Where `wide` is not NULL, up to SOME neighbours
 * are added up one after another in single precision, and these sums in double precision in `wide`, which starts as
 * zeros; `out` then has room for one model. Returns 0, or 1 if a label is none. */
int64_t mithridate_clipped_sums(const Stage *stages, int64_t stage_count, const Layer *layers, int64_t layer_count,
                                const int64_t *places, const float *weights, int64_t models, int64_t parameters,
                                const float *inputs, const int64_t *labels, const uint8_t *present, int64_t batch,
                                const float *loss_weights, const Limits *limits, float *scratch, float *out,
                                double *wide)
{
    Network network;
    const float *some[SOME];
    int64_t input = stages->channels * stages->height * stages->width, some_labels[SOME] = {0};
    for (int64_t model = 0; model < models; model++, weights += parameters) {
        take_model(&network, stages, stage_count, layers, layer_count, places, weights, scratch);
        int64_t count = 0, end = (model + 1) * batch;
        for (int64_t e = model * batch; e < end; e++) {
            if (present[e]) {
                if (labels[e] < 0 || labels[e] >= network.classes) return 1;
                some[count] = inputs + e * input;
                some_labels[count++] = labels[e];
            }
            if (count == 0 || (count < SOME && e + 1 < end)) continue;
            add_some(&network, weights, places, some, some_labels, count, loss_weights, limits, NULL);
            count = 0;
            if (wide != NULL) {
                give_sums(&network, places, out);
                forget_sums(&network);
                for (int64_t i = 0; i < parameters; i++) wide[model * parameters + i] += (double)out[i];
            }
        }
        if (wide == NULL) give_sums(&network, places, out + model * parameters);
    }
    return 0;
}

/* For each model the sum over its units of the mean gradients of their examples, each clipped: `shares` is models x batch
 * x rows, 0 where an example does not count. `mean` has room for one model, up to a multiple of LANES, and starts as
 * zeros; so do the sums, of which there are those in single precision (`out`) or those in double precision (`wide`).
 * Returns 0, or 1 if a label is none. */
int64_t mithridate_clipped_means(const Stage *stages, int64_t stage_count, const Layer *layers, int64_t layer_count,
                                 const int64_t *places, const float *weights, int64_t models, int64_t parameters,
                                 const float *inputs, const int64_t *labels, const float *shares, int64_t batch,
                                 int64_t rows, const float *loss_weights, const Limits *limits, float *scratch,
                                 float *mean, float *out, double *wide)
{
    Network network;
    int64_t input = stages->channels * stages->height * stages->width;
    for (int64_t model = 0; model < models; model++, weights += parameters) {
        take_model(&network, stages, stage_count, layers, layer_count, places, weights, scratch);
        for (int64_t unit = model * batch; unit < (model + 1) * batch; unit++) {
            int64_t first = unit * rows;
            int found = unit_mean(&network, weights, places, inputs + first * input, input, labels + first,
                                  shares + first, rows, loss_weights, limits, mean);
            if (found == 1) return 1;
            if (found == -1) continue;
            float factor = clipping_factor(sum_of_squares(mean, rounded(parameters, LANES)), limits);
            if (factor == 0.0f) continue;
            for (int64_t i = 0; i < parameters; i++) {
                float part = factor * mean[i];
                if (wide != NULL)
                    wide[model * parameters + i] += (double)part;
                else
                    out[model * parameters + i] += part;
            }
        }
    }
    return 0;
}

/* sums[model][place] += scale * a standard normal that belongs to the model's key (three words), the step and the
 * place; in double precision or in single precision. */
void mithridate_add_normals(const uint32_t *keys, int64_t models, int64_t step, double scale, int64_t is_double,
                            void *sums, int64_t size)
{
    float even[PAIRS], odd[PAIRS];
    for (int64_t model = 0; model < models; model++)
        for (int64_t first = 0; first < size; first += 2 * PAIRS) {
            int64_t count = size - first < 2 * PAIRS ? size - first : 2 * PAIRS, start = model * size + first;
            normal_pairs(keys + 3 * model, (uint32_t)(first / 2), (uint32_t)step, even, odd);
            double *wide = (double *)sums + start;
            float *narrow = (float *)sums + start, share = (float)scale;
            if (is_double) {
                for (int64_t i = 0; i < count; i++) wide[i] += scale * (double)(i % 2 ? odd : even)[i / 2];
            } else {
                for (int64_t i = 0; i < count / 2; i++) {
                    narrow[2 * i] += share * even[i];
                    narrow[2 * i + 1] += share * odd[i];
                }
                if (count % 2) narrow[count - 1] += share * even[count / 2];
            }
        }
}
