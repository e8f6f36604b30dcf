/* The first stages of a convolutional network, for one model and a batch: outputs, and the gradients of each example.
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
 * hold nothing of interest and never mix with the others. Nothing is shared between calls: all memory is the caller's.
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

/* out[t] = start + sum over segments and k of left[t * left_row + k] * right[k], a vector for each t < count. `right`
 * is read from one end to the other; `left` moves by left_segment after each `depth` of it. */
typedef void Product(const float *left, int64_t left_row, int64_t left_segment, const float *right, int64_t segments,
                     int64_t depth, const float *start, float *out, int64_t out_row);

#define DEFINE_PRODUCT(vector, count)                                                                                  \
    static void product_##vector##_##count(const float *left, int64_t left_row, int64_t left_segment,                  \
                                           const float *right, int64_t segments, int64_t depth, const float *start,    \
                                           float *out, int64_t out_row)                                                \
    {                                                                                                                  \
        vector sums[count];                                                                                            \
        UNROLL for (int t = 0; t < count; t++) sums[t] = *(const vector *)start;                                       \
        for (int64_t segment = 0; segment < segments; segment++, left += left_segment)                                 \
            for (int64_t k = 0; k < depth; k++, right += sizeof(vector) / sizeof(float)) {                             \
                vector factor = *(const vector *)right;                                                                \
                UNROLL for (int t = 0; t < count; t++) sums[t] += factor * left[t * left_row + k];                     \
            }                                                                                                          \
        UNROLL for (int t = 0; t < count; t++) *(vector *)(out + t * out_row) = sums[t];                               \
    }

/* The same for an image of one channel, whose `span` entries of a run are read once for all positions. */
#define DEFINE_GREY_PRODUCT(vector, count, span)                                                                       \
    static void grey_##vector##_##count##_##span(const float *left, int64_t left_row, int64_t left_segment,            \
                                                 const float *right, int64_t segments, int64_t depth,                  \
                                                 const float *start, float *out, int64_t out_row)                      \
    {                                                                                                                  \
        (void)left_row, (void)depth;                                                                                   \
        vector sums[count];                                                                                            \
        UNROLL for (int t = 0; t < count; t++) sums[t] = *(const vector *)start;                                       \
        for (int64_t segment = 0; segment < segments; segment++, left += left_segment) {                               \
            vector factors[span];                                                                                      \
            UNROLL for (int k = 0; k < span; k++, right += sizeof(vector) / sizeof(float))                             \
                factors[k] = *(const vector *)right;                                                                   \
            UNROLL for (int i = 0; i < count + span - 1; i++) {                                                        \
                vector pixel = left[i] - (vector){0.0f};                                                               \
                UNROLL for (int k = 0; k < span; k++)                                                                  \
                    if (i >= k && i - k < count) sums[i - k] += factors[k] * pixel;                                    \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int t = 0; t < count; t++) *(vector *)(out + t * out_row) = sums[t];                               \
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

static Product *product_for(int64_t lanes, int64_t count, int64_t left_row, int64_t depth)
{
#if MANY_REGISTERS
    if (lanes == 16) return products_16[count - 1];
#endif
    if (left_row == 1 && depth == 3) return grey_products_3[count - 1];
    if (left_row == 1 && depth == 5) return grey_products_5[count - 1];
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

/* tanh(x) = e / (e + 2) with e = exp(2x) - 1 = (2^n - 1) + 2^n (exp(r) - 1), 2x = n ln 2 + r; within 2e-7, and exactly
 * 1 and -1 far from 0. NaN stays NaN. */
INLINE v8 tanh_of(v8 x)
{
    const v8 most = (v8){0.0f} + 19.0f;
    v8 twice = x + x;
    i8 above = twice > most, below = twice < -most;
    twice = (v8)(((i8)twice & ~(above | below)) | ((i8)most & above) | ((i8)-most & below));
    /* Adding 1.5 * 2^23 rounds to an integer, which is then in the last bits. */
    v8 shifted = twice * 1.44269504f + 12582912.0f;
    v8 number = shifted - 12582912.0f;
    v8 rest = number * -0.693145752f + twice;
    rest = number * -1.42860677e-6f + rest;
    v8 series = rest * 1.38888889e-3f + 8.33333333e-3f;
    series = series * rest + 4.16666667e-2f;
    series = series * rest + 1.66666667e-1f;
    series = series * rest + 0.5f;
    series = series * (rest * rest) + rest;
    v8 power = (v8)(((i8)shifted << 23) + 0x3f800000);
    v8 grown = power * series + (power - 1.0f);
    return grown / (grown + 2.0f);
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
                      const Sizes *sizes, float *errors, float *biases)
{
    int64_t lanes = sizes->output_lanes, line = sizes->wide * lanes;
    float share = 1.0f / (float)(tall * wide);
    for (int64_t lane = 0; lane < lanes; lane += LANES) {
        v8 total = {0.0f};
        for (int64_t row = 0; row < sizes->rows; row++)
            for (int64_t column = 0; column < sizes->columns; column++) {
                v8 spread = *(const v8 *)(gradients + (row * sizes->columns + column) * lanes + lane) * share;
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
        unpool_by(2, 2, 1, gradients, activations, sizes, errors, biases);
    else if (is_common(stage))
        unpool_by(2, 2, 0, gradients, activations, sizes, errors, biases);
    else
        unpool_by(stage->window_height, stage->window_width, stage->relu, gradients, activations, sizes, errors,
                  biases);
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
        for (int64_t y = 0; y < stage->kernel_height; y++)
            for (int64_t output = 0; output < stage->outputs; output++)
                for (int64_t at = first; at < first + step; at++, out++) {
                    int64_t x = at / stage->channels, channel = at % stage->channels;
                    int64_t entry = (channel * stage->kernel_height + y) * stage->kernel_width + x;
                    *out = at < sizes->run ? weights[output * sizes->entries + entry] : 0.0f;
                }
    }
}

/* --- one stage of one example ------------------------------------------------------------------------------------- */

static void convolve_row(const float *image, const float *weights, const float *biases, const Stage *stage,
                         const Sizes *sizes, float *out)
{
    int64_t line = sizes->padded_width * stage->channels, lanes = sizes->output_lanes, step, count;
    for (int64_t lane = 0; lane < lanes; lane += step) {
        step = vector_lanes(lanes - lane);
        for (int64_t at = 0; at < sizes->wide; at += count) {
            count = next_count(sizes->wide - at);
            Product *product = product_for(step, count, stage->channels, sizes->run);
            product(image + at * stage->channels, stage->channels, line,
                    weights + lane * stage->kernel_height * sizes->run, stage->kernel_height, sizes->run,
                    biases + lane, out + at * lanes + lane, lanes);
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
    for (int64_t row = 0; row < stage->height; row++, out += stage->width * lanes) {
        int64_t y = row + stage->padding_height;  /* rows of errors that meet it: y - kernel row */
        int64_t first = y >= sizes->tall ? y - sizes->tall + 1 : 0;
        int64_t last = y < stage->kernel_height ? y : stage->kernel_height - 1;
        int64_t segments = last >= first ? last - first + 1 : 0;
        for (int64_t lane = 0; lane < sizes->run_lanes; lane += step) {
            step = vector_lanes(sizes->run_lanes - lane);
            const float *panel = weights + lane * stage->kernel_height * stage->outputs + first * stage->outputs * step;
            for (int64_t at = 0; at < sizes->wide; at += count) {
                count = next_count(sizes->wide - at);
                Product *product = product_for(step, count, sizes->output_lanes, stage->outputs);
                product(errors + (y - first) * line + at * sizes->output_lanes, sizes->output_lanes, -line, panel,
                        segments, stage->outputs, zeros, products + at * sizes->run_lanes + lane, sizes->run_lanes);
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

static double sum_of_squares(const float *values, int64_t count)
{
    d8 sums = {0.0};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        d8 value = __builtin_convertvector(*(const v8 *)(values + i), d8);
        sums += value * value;
    }
    double sum = 0.0;
    for (int lane = 0; lane < 8; lane++) sum += sums[lane];
    for (; i < count; i++) sum += (double)values[i] * (double)values[i];
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

/* --- what Python calls -------------------------------------------------------------------------------------------- */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Floats of one example that go from `forward` to `example_gradients`: the activations of each stage, and the images of
 * all stages but the first. */
int64_t mithridate_saved_floats(const Stage *stages, int64_t count)
{
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) {
        Sizes sizes = sizes_of(stages + i);
        total += sizes.activations + (i > 0 ? sizes.image : 0);
    }
    return total;
}

/* Floats of working memory of either call. */
int64_t mithridate_scratch_floats(const Stage *stages, int64_t count)
{
    int64_t weights = 0, place = 0, errors = 0, results = 0, products = 0, entries = 0, lanes = 0;
    for (int64_t i = 0; i < count; i++) {
        Sizes s = sizes_of(stages + i);
        int64_t backward = s.run_lanes * stages[i].kernel_height * stages[i].outputs;
        weights += rounded(larger(s.output_lanes * s.entries, backward), 16) + rounded(s.output_lanes, 16);
        place += rounded(s.entries, 16);
        errors = larger(errors, s.activations);
        results = larger(results, larger(s.rows * s.columns * s.output_lanes,
                                         stages[i].height * stages[i].width * rounded(stages[i].channels, LANES)));
        products = larger(products, s.wide * s.run_lanes);
        entries = larger(entries, s.entries * s.output_lanes);
        lanes = larger(lanes, s.output_lanes);
    }
    return weights + place + rounded(errors, 16) + rounded(results, 16) + rounded(products, 16) + rounded(entries, 16)
           + rounded(lanes, 16) + sizes_of(stages).image + 64;
}

static float *carve(float **memory, int64_t floats)
{
    float *start = *memory;
    *memory += rounded(floats, 16);
    return start;
}

#define MOST_STAGES 16

/* `saved` moves on by saved_step floats after each example: 0 where nobody will ask for gradients. */
void mithridate_forward(const Stage *stages, int64_t count, const float *const *weights, const float *const *biases,
                        const float *images, int64_t batch, float *saved, int64_t saved_step, float *scratch,
                        float *out)
{
    Sizes sizes[MOST_STAGES];
    float *panels[MOST_STAGES], *starts[MOST_STAGES];
    memset(scratch, 0, (size_t)mithridate_scratch_floats(stages, count) * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        sizes[i] = sizes_of(stages + i);
        panels[i] = carve(&scratch, sizes[i].output_lanes * sizes[i].entries);
        weights_for_outputs(weights[i], stages + i, sizes + i, panels[i]);
        starts[i] = carve(&scratch, sizes[i].output_lanes);
        memcpy(starts[i], biases[i], (size_t)stages[i].outputs * sizeof(float));
    }
    float *first_image = carve(&scratch, sizes[0].image), *pooled = scratch;
    const Sizes *end = sizes + count - 1;
    for (int64_t example = 0; example < batch; example++, saved += saved_step) {
        take_image(images, stages, sizes, first_image);
        images += stages->channels * stages->height * stages->width;
        float *memory = saved, *image = first_image;
        for (int64_t i = 0; i < count; i++) {
            const Stage *stage = stages + i;
            const Sizes *s = sizes + i;
            float *activations = memory, *next = memory + s->activations;
            if (i + 1 < count && (stage[1].padding_height || stage[1].padding_width))
                memset(next, 0, (size_t)s[1].image * sizeof(float));
            int64_t line = s->wide * s->output_lanes, block = stage->window_height * line;
            for (int64_t row = 0; row < s->rows; row++) {
                float *values = activations + row * block;
                for (int64_t y = 0; y < stage->window_height; y++)
                    convolve_row(image + (row * stage->window_height + y) * s->padded_width * stage->channels,
                                 panels[i], starts[i], stage, s, values + y * line);
                activate(values, block, stage->relu);
                if (i + 1 < count) {
                    pool(values, stage, s, pooled);
                    hand_on(pooled, row, s, stage + 1, s + 1, next);
                } else {
                    pool(values, stage, s, pooled + row * s->columns * s->output_lanes);
                }
            }
            memory = next + (i + 1 < count ? s[1].image : 0);
            image = next;
        }
        int64_t positions = end->rows * end->columns;
        transpose(pooled, end->output_lanes, positions, stages[count - 1].outputs, out, positions);
        out += positions * stages[count - 1].outputs;
    }
}

/* weight_gradients[i]: batch x entries of all weights; bias_gradients[i]: batch x outputs; squares[i]: batch. */
void mithridate_example_gradients(const Stage *stages, int64_t count, const float *const *weights, const float *images,
                                  int64_t batch, const float *saved, int64_t saved_step, const float *gradients,
                                  float *scratch, float *const *weight_gradients, float *const *bias_gradients,
                                  double *const *squares)
{
    Sizes sizes[MOST_STAGES];
    float *panels[MOST_STAGES];
    int32_t *places[MOST_STAGES];
    int64_t errors_floats = 0, results_floats = 0, products_floats = 0, entries_floats = 0, lanes = 0;
    memset(scratch, 0, (size_t)mithridate_scratch_floats(stages, count) * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        const Stage *stage = stages + i;
        Sizes *s = sizes + i;
        *s = sizes_of(stage);
        panels[i] = carve(&scratch, s->run_lanes * stage->kernel_height * stage->outputs);
        if (i > 0) weights_for_inputs(weights[i], stage, s, panels[i]);
        places[i] = (int32_t *)carve(&scratch, s->entries);
        for (int64_t y = 0; y < stage->kernel_height; y++)
            for (int64_t at = 0; at < s->run; at++)
                places[i][y * s->run + at] = (int32_t)((at % stage->channels * stage->kernel_height + y)
                                                       * stage->kernel_width + at / stage->channels);
        errors_floats = larger(errors_floats, s->activations);
        results_floats = larger(results_floats, s->rows * s->columns * s->output_lanes);
        products_floats = larger(products_floats, s->wide * s->run_lanes);
        entries_floats = larger(entries_floats, s->entries * s->output_lanes);
        lanes = larger(lanes, s->output_lanes);
    }
    float *first_image = carve(&scratch, sizes[0].image), *errors = carve(&scratch, errors_floats);
    float *results = carve(&scratch, results_floats), *entries = carve(&scratch, entries_floats);
    float *sums = carve(&scratch, lanes), *products = scratch;  /* the last: it is read a little beyond its end */
    const Sizes *end = sizes + count - 1;
    int64_t outputs = stages[count - 1].outputs, positions = end->rows * end->columns;
    for (int64_t example = 0; example < batch; example++, saved += saved_step) {
        take_image(images, stages, sizes, first_image);
        images += stages->channels * stages->height * stages->width;
        transpose(gradients, positions, outputs, positions, results, end->output_lanes);
        gradients += outputs * positions;
        const float *memory = saved + saved_step;
        for (int64_t i = count - 1; i >= 0; i--) {
            const Stage *stage = stages + i;
            const Sizes *s = sizes + i;
            const float *activations = memory - s->activations;
            const float *image = i > 0 ? activations - s->image : first_image;
            memory = image;
            float *row = weight_gradients[i] + example * s->entries * stage->outputs;
            unpool(results, activations, stage, s, errors, sums);
            weight_gradient(image, errors, places[i], stage, s, entries);
            transpose(entries, s->output_lanes, s->entries, stage->outputs, row, s->entries);
            memcpy(bias_gradients[i] + example * stage->outputs, sums, (size_t)stage->outputs * sizeof(float));
            squares[i][example] =
                sum_of_squares(row, s->entries * stage->outputs) + sum_of_squares(sums, stage->outputs);
            if (i > 0) input_gradient(errors, panels[i], stage, s, s[-1].output_lanes, products, results);
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
