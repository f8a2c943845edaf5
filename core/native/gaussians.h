/* Tier 2 of noise.c: a word's Gaussian in float64, with a proven bound on its error (docs/theorems.md), and the number
 * that is released. Compiled for processors (noise.c) and for GPUs (noise_step.h): only IEEE operations, one by one,
 * so both find the same bits, and are in doubt of the same numbers.
 */
#ifndef SCRIMP_GAUSSIANS_H
#define SCRIMP_GAUSSIANS_H

#include "two_compilers.h"

#ifndef SECOND_ERROR
#define SECOND_ERROR 0x1p-45
#endif
#ifndef SECOND_TAIL
#define SECOND_TAIL 0x1p-62 /* U is known to 2^-64, and so is each table entry */
#endif
#ifndef SECOND_ROUNDING
#define SECOND_ROUNDING 0x1p-38
#endif
#define DEGREE 10
#define LAST 208

/* At x = j / 32: round(2^64 * Phi(-x)), and 2^-64 / phi(x). tests/worker/test_native_bounds.py computes them again. */
TABLE struct {
    uint64_t tail;
    double scale;
} POINTS[LAST + 1] = {
    {0x8000000000000000u, 0x1.40d931ff62706p-63}, {0x7ccf196345a272bau, 0x1.41014fa76f7e4p-63},
    {0x799efee26d44cddau, 0x1.4179c6ba38688p-63}, {0x76707c00670c28b9u, 0x1.4242f1ad4c5c2p-63},
    {0x73445b0efe5a99fau, 0x1.435d67c267b27p-63}, {0x701b6498237ea63au, 0x1.44c9fdc510146p-63},
    {0x6cf65ec96d06ee4bu, 0x1.4689c715d9dfbp-63}, {0x69d60ce287e97ddau, 0x1.489e17052cee1p-63},
    {0x66bb2ea748949e58u, 0x1.4b08827fec435p-63}, {0x63a67fd608b4bd65u, 0x1.4dcae210f6fd3p-63},
    {0x6098b7a2f60dce4au, 0x1.50e7543b126c7p-63}, {0x5d928838ee470f27u, 0x1.5460402f6ef39p-63},
    {0x5a949e407a090c65u, 0x1.583858e5a4979p-63}, {0x579fa06d6f6400d5u, 0x1.5c72a09abab62p-63},
    {0x54b42f13b83707ccu, 0x1.61126cbd91c77p-63}, {0x51d2e3c3ad576712u, 0x1.661b6a4fd84afp-63},
    {0x4efc50ee6a9c490du, 0x1.6b91a2c39705p-63}, {0x4c31019272d17dbbu, 0x1.7179815e56b9ep-63},
    {0x497178f0ed0704b6u, 0x1.77d7d92bed097p-63}, {0x46be324bb6d79044u, 0x1.7eb1eb8c2199dp-63},
    {0x4417a0ac79327f4fu, 0x1.860d6f679b583p-63}, {0x417e2eb4df1299e6u, 0x1.8df09919e2756p-63},
    {0x3ef23e77ff6e8465u, 0x1.9662231fc2892p-63}, {0x3c74295cfdb6311eu, 0x1.9f69579afcf05p-63},
    {0x3a04400ad6749b6au, 0x1.a90e1abe0a7a7p-63}, {0x37a2ca5d4048c1abu, 0x1.b358f634a9c5p-63},
    {0x355007627c74d7e0u, 0x1.be5325a02abfbp-63}, {0x330c2d61e5d63ef2u, 0x1.ca06a440d5e55p-63},
    {0x30d769eb014973e1u, 0x1.d67e3be87da1ep-63}, {0x2eb1e1ecc75e9326u, 0x1.e3c5955541d42p-63},
    {0x2c9bb1d4d4e6e47bu, 0x1.f1e94a16d8f07p-63}, {0x2a94edb62659b999u, 0x1.007b7c122cd67p-62},
    {0x289da176f964165bu, 0x1.087eaba64708ap-62}, {0x26b5d10568362845u, 0x1.11062857acb2fp-62},
    {0x24dd78924b544050u, 0x1.1a1a8c39ddb2bp-62}, {0x23148cd1e8dd2b1du, 0x1.23c524f9c5c15p-62},
    {0x215afb41f3617102u, 0x1.2e10034e1c172p-62}, {0x1fb0aa74568ff096u, 0x1.39060be55d8c2p-62},
    {0x1e157a5e4d23e02cu, 0x1.44b309f8510d3p-62}, {0x1c8944ab39a3d4e4u, 0x1.5123c3ac4e9d2p-62},
    {0x1b0bdd12ba9c2945u, 0x1.5e66107548426p-62}, {0x199d11b1730a3c25u, 0x1.6c88f1ace9addp-62},
    {0x183cab6400a0e64fu, 0x1.7b9cad9a189c5p-62}, {0x16ea6e239b5ee5cau, 0x1.8bb2ed2ac89bap-62},
    {0x15a61963dc9205f9u, 0x1.9cdedca98747fp-62}, {0x146f68712ec84c87u, 0x1.af354fc07b669p-62},
    {0x134612cf6c4d1028u, 0x1.c2cce924e5ec6p-62}, {0x1229cc9836933b30u, 0x1.d7be4650a8241p-62},
    {0x111a46d89647ee9eu, 0x1.ee242fbb0a39ep-62}, {0x10172fed79a87789u, 0x1.030de707914ebp-61},
    {0x0f2033dead0ad7fau, 0x1.0fe272767fd33p-61}, {0x0e34fcb7f03f8a65u, 0x1.1da109e9a356p-61},
    {0x0d5532dfd27c1706u, 0x1.2c5c8ef0cd233p-61}, {0x0c807d6c05c71764u, 0x1.3c299c9c8481p-61},
    {0x0bb68272e2562b36u, 0x1.4d1eb36ba9d78p-61}, {0x0af6e759d9e46107u, 0x1.5f5469f22f627p-61},
    {0x0a415120a2ab6e54u, 0x1.72e5a2c38079fp-61}, {0x099564a8e94c3703u, 0x1.87efc83c05eacp-61},
    {0x08f2c6fa6084cd4bu, 0x1.9e930ed8321f5p-61}, {0x08591d830d0560c9u, 0x1.b6f2bedcecc76p-61},
    {0x07c80e53b2fd9ebbu, 0x1.d135862d675a2p-61}, {0x073f4058520cf4fdu, 0x1.ed85d345ba222p-61},
    {0x06be5b8ca30f3dfcu, 0x1.06091d3848f8ep-60}, {0x0645092c91c2fd69u, 0x1.1686f33897101p-60},
    {0x05d2f3e0b27617e6u, 0x1.28588b0141e5dp-60}, {0x0567c7e6b9ba9872u, 0x1.3b9cd3dc98ecp-60},
    {0x0503333601989aa1u, 0x1.5075db0461b5ep-60}, {0x04a4e5a02cbff483u, 0x1.670922b3314acp-60},
    {0x044c90edfce009ebu, 0x1.7f800362438a6p-60}, {0x03f9e8f87583b773u, 0x1.9a081876bb47bp-60},
    {0x03aca3be6898fcf3u, 0x1.b6d3b9cb6acc9p-60}, {0x036479768d278306u, 0x1.d61a83b44285bp-60},
    {0x0321249e43a6c24au, 0x1.f819ef4f1ea75p-60}, {0x02e262052de5d9efu, 0x1.0e8afe99ec1b3p-59},
    {0x02a7f0d5c28e3d90u, 0x1.22acfa6e290ccp-59}, {0x0271929b05fa4a4du, 0x1.389c9db6fcdf1p-59},
    {0x023f0b4393652fbau, 0x1.5088227527aefp-59}, {0x021021222266aa72u, 0x1.6aa2d19a978e2p-59},
    {0x01e49cebb53f9875u, 0x1.87259b6bd739p-59}, {0x01bc49b39cb9a704u, 0x1.a64fc2f7d43d7p-59},
    {0x0196f4e57e49ce46u, 0x1.c8679f2c8b8bbp-59}, {0x01746e3d88c8d7a7u, 0x1.edbb746905a24p-59},
    {0x015487bf0374d493u, 0x1.0b5134e9f9c9fp-58}, {0x013715a96210618bu, 0x1.21becf1a16d88p-58},
    {0x011bee6c07df1464u, 0x1.3a5cb047ca645p-58}, {0x0102ea98e1f7c2d0u, 0x1.556748b80697p-58},
    {0x00ebe4d5fff398deu, 0x1.7322193043f92p-58}, {0x00d6b9ce506a5230u, 0x1.93d895007088ep-58},
    {0x00c34821a4f64016u, 0x1.b7df21fd703dcp-58}, {0x00b170541fabd28du, 0x1.df943a98d8c73p-58},
    {0x00a114bd2a0d94e7u, 0x1.05b0db6f4e304p-57}, {0x0092197613942dfeu, 0x1.1ddf20ea92379p-57},
    {0x0084644873e6dfb7u, 0x1.389780c5d78p-57}, {0x0077dc9c6ae0d148u, 0x1.5624bc88fd56fp-57},
    {0x006c6b66d67e636bu, 0x1.76dad6544232dp-57}, {0x0061fb1794cfcd33u, 0x1.9b1848dbe1986p-57},
    {0x00587787e616d75bu, 0x1.c3476ac6eb2f4p-57}, {0x004fcde90147ebf1u, 0x1.efe003c68c98fp-57},
    {0x0047ecb2eb45ada7u, 0x1.10b48d591df76p-56}, {0x0040c3939f5c600cu, 0x1.2c3d8289cfd85p-56},
    {0x003a435e95c1badbu, 0x1.4ae0e0ec97ed6p-56}, {0x00345dfcb3301b28u, 0x1.6cffd533f4e9ap-56},
    {0x002f065cab1ae0a6u, 0x1.93084381f423dp-56}, {0x002a3063dc764f24u, 0x1.bd768ac7d077dp-56},
    {0x0025d0dfafa0680du, 0x1.ecd789ff0fbb6p-56}, {0x0021dd777aa27980u, 0x1.10e578a505965p-55},
    {0x001e4c9eefc4f5d7u, 0x1.2e82f551b466p-55}, {0x001b15891948a8ccu, 0x1.4fab13d0ac63fp-55},
    {0x0018301be4097ac0u, 0x1.74d2b1ff00fb7p-55}, {0x001594e439d7625bu, 0x1.9e7eb7900759cp-55},
    {0x00133d0aab71796cu, 0x1.cd4668ea68408p-55}, {0x00112248a944cd3eu, 0x1.00eb0a38f8d04p-54},
    {0x000f3ede495bbeeau, 0x1.1e79144c3b0cp-54}, {0x000d8d88984aca3au, 0x1.3fbd61b757c5cp-54},
    {0x000c0978725b68c2u, 0x1.6537e79a4f0afp-54}, {0x000aae49e1bc8616u, 0x1.8f7ae154d0b25p-54},
    {0x000977fbfe188f3cu, 0x1.bf2d8fd6a8475p-54}, {0x000862e9499a7d89u, 0x1.f50f679e4cdcap-54},
    {0x00076bc0872437f2u, 0x1.18fddfc65d4ccp-53}, {0x00068f7e05402639u, 0x1.3b770ae6a6a4dp-53},
    {0x0005cb65592cb738u, 0x1.628381d9c1e1bp-53}, {0x00051cfb8541c975u, 0x1.8ec8fedc6a12dp-53},
    {0x0004820185dc41bfu, 0x1.c10600e82045cp-53}, {0x0003f86f3ff294c9u, 0x1.fa15ae1c0b27bp-53},
    {0x00037e6ecc749487u, 0x1.1d7a2c7dba66dp-52}, {0x000312581ba070cfu, 0x1.4262621e9441cp-52},
    {0x0002b2aceb8597b8u, 0x1.6c6b22e62e4c2p-52}, {0x00025e150d031552u, 0x1.9c55f7b306bc3p-52},
    {0x0002135af2a95fffu, 0x1.d302750be77d5p-52}, {0x0001d168850659b7u, 0x1.08b98e80a414cp-51},
    {0x000197443804f699u, 0x1.2c698a58856bap-51}, {0x0001640e5d2fbcc6u, 0x1.553e69509f61dp-51},
    {0x000136feaecd8d1eu, 0x1.8400f8f5fda99p-51}, {0x00010f620ffa422bu, 0x1.b99a2f20c8763p-51},
    {0x0000ec987e082a29u, 0x1.f7188b2b29349p-51}, {0x0000ce132fa3b857u, 0x1.1edb336c703f9p-50},
    {0x0000b352de5f9227u, 0x1.4770b1182e332p-50}, {0x00009be6377bf51eu, 0x1.76218ecc1a257p-50},
    {0x0000876870e9046eu, 0x1.abe5bf95dc80cp-50}, {0x0000757fffaf8e64u, 0x1.e9de65dacaecfp-50},
    {0x000065dd6d1709a3u, 0x1.18ae7a5dcc258p-49}, {0x0000583a4809b188u, 0x1.41f5ccd234dc9p-49},
    {0x00004c5830609b08u, 0x1.71ab958ede648p-49}, {0x000041fff9e93163u, 0x1.a8dd72d7e1f18p-49},
    {0x00003900e51ba760u, 0x1.e8c726dd1ee0ep-49}, {0x0000312feb9e7680u, 0x1.196d677fe3665p-48},
    {0x00002a671ed5f195u, 0x1.44654fb763d86p-48}, {0x0000248516e03011u, 0x1.764a369eaba4ep-48},
    {0x00001f6c707d24b1u, 0x1.b047afd83c8a6p-48}, {0x00001b0358808b9cu, 0x1.f3be1987d448bp-48},
    {0x0000173323878310u, 0x1.21262319ee4ecp-47}, {0x000013e7f0c61bcfu, 0x1.4eed7dc94697bp-47},
    {0x0000111056da03ccu, 0x1.845551073010fp-47}, {0x00000e9d19a6a844u, 0x1.c2b1c9a8fc46p-47},
    {0x00000c80e854d924u, 0x1.05ca6321eac8p-46}, {0x00000ab022a4240bu, 0x1.306cb8ff82cp-46},
    {0x00000920a4ced8d9u, 0x1.625910a42130ep-46}, {0x000007c999530430u, 0x1.9cdc723022da4p-46},
    {0x000006a35002b6f4u, 0x1.e181add5474dcp-46}, {0x000005a719ccbd31u, 0x1.190e9dad6fcep-45},
    {0x000004cf28bc84ceu, 0x1.486dba8b848fep-45}, {0x0000041673bc7600u, 0x1.8028d4ecf6c5ap-45},
    {0x000003789db17611u, 0x1.c1c94da361162p-45}, {0x000002f1df90c986u, 0x1.0791c76ce9a4ep-44},
    {0x0000027ef51b1da5u, 0x1.3532ed491efd1p-44}, {0x0000021d0bf03ad4u, 0x1.6b150e752c21p-44},
    {0x000001c9b4b6d0b6u, 0x1.aac5b1fa54f9dp-44}, {0x00000182d61b0147u, 0x1.f61fe0e78c9ap-44},
    {0x00000146a16cd7b7u, 0x1.27ade20c91d8ap-43}, {0x0000011388adbfc4u, 0x1.5c90c02ecf48p-43},
    {0x000000e835e167d7u, 0x1.9b50013485d3fp-43}, {0x000000c3837b4731u, 0x1.e5d4497ce2a46p-43},
    {0x000000a475c6555cu, 0x1.1f340ed1bbaa7p-42}, {0x0000008a35286363u, 0x1.53e60f13da5c9p-42},
    {0x000000740926045du, 0x1.92a7c8d9a770dp-42}, {0x00000061540f1243u, 0x1.dd7717a06e368p-42},
    {0x000000518f3ea720u, 0x1.1b5d13e3cdafep-41}, {0x0000004447dbe0a9u, 0x1.50aabbfbf9dep-41},
    {0x000000391c0afd2du, 0x1.906350a1a5c5cp-41}, {0x0000002fb8805aedu, 0x1.dca27b4848e7ap-41},
    {0x00000027d668a48eu, 0x1.1bfa528e2846bp-40}, {0x00000021399b0458u, 0x1.52b79d67f8bf8p-40},
    {0x0000001baf0b9952u, 0x1.946727657bbbfp-40}, {0x000000170b75a1d4u, 0x1.e34c68ec1532cp-40},
    {0x000000132a35e336u, 0x1.211338c37725ep-39}, {0x0000000fec4ec9b1u, 0x1.5a258467f172ap-39},
    {0x0000000d379091d7u, 0x1.9ee3f6af51a87p-39}, {0x0000000af5e08985u, 0x1.f1c5cdf6eebe9p-39},
    {0x00000009149b1bbcu, 0x1.2ae5d7ac8891p-38}, {0x00000007840cebc8u, 0x1.674f33dd29deep-38},
    {0x0000000636ffc344u, 0x1.b05a5ee2c29d7p-38}, {0x0000000522588586u, 0x1.04607fb602a2cp-37},
    {0x000000043cc3bc02u, 0x1.39ebd5e4d5401p-37}, {0x000000037e6ea3b4u, 0x1.7ad8a232ae335p-37},
    {0x00000002e0caed49u, 0x1.c9a54a4dd02ddp-37}, {0x000000025e5ba1b7u, 0x1.14b00d77f172p-36},
    {0x00000001f289d487u, 0x1.4ee44b6978286p-36}, {0x00000001997ffd48u, 0x1.95bc569795a6fp-36},
    {0x00000001500afb59u, 0x1.ec0be1b5993d9p-36}, {0x00000001137feb54u, 0x1.2aa67df4a595fp-35},
    {0x00000000e1a6147au, 0x1.6ae3a714a9529p-35}, {0x00000000b8a44f84u, 0x1.b9606a1d0fedcp-35},
    {0x0000000096f15f40u, 0x1.0cae9a664885cp-34}, {0x000000007b46c763u, 0x1.476ec697fd8f9p-34},
    {0x000000006495bf0cu, 0x1.8f6b79c2b8d7fp-34}, {0x0000000051fdeb1fu, 0x1.e7b5a6999007ap-34},
    {0x0000000042c59941u, 0x1.2a0c6ff905849p-33}, {0x0000000036533eedu, 0x1.6ca468b7fe09bp-33},
    {0x000000002c280966u, 0x1.be8d0773fb984p-33},
};

/* The coefficients of z - x in y = (Phi(-x) - p) / phi(x), from y itself on. */
SERIES_TABLE double SERIES[LAST + 1][DEGREE];

/* One point's row of SERIES. With z = G(y): G' = exp((G^2 - x^2) / 2) = E, so E' = G E^2. All coefficients are positive:
 * nothing cancels. */
INLINE void expand(int at) {
    double g[DEGREE + 1] = {(double)at / 32.0, 1.0}, e[DEGREE] = {1.0}, square[DEGREE];
    SERIES[at][0] = 1.0;
    for (int k = 0; k + 1 < DEGREE; k++) {
        double next = 0.0;
        square[k] = 0.0;
        for (int i = 0; i <= k; i++) square[k] += e[i] * e[k - i];
        for (int i = 0; i <= k; i++) next += g[i] * square[k - i];
        e[k + 1] = next / (double)(k + 1);
        g[k + 2] = SERIES[at][k + 1] = e[k + 1] / (double)(k + 2);
    }
}

/* Tier 2: the Taylor series of Phi^-1 at the nearest point of the table. Returns 0 beyond the table, |Z| > 6.5. */
INLINE int second_tier(int64_t word, double *z, double *error) {
    uint64_t u = (uint64_t)word ^ 0x8000000000000000u;
    uint64_t p = word < 0 ? u : ~u; /* the tail, rounded down to 2^-64 */
    if (p < POINTS[LAST].tail) return 0;
    int at = 0; /* the last point whose tail is above p; point 0 for p = 1/2 */
    for (int step = 128; step; step /= 2) at += at + step < LAST && p < POINTS[at + step].tail ? step : 0;
    at += POINTS[at].tail - p > p - POINTS[at + 1].tail;
    double y = ((double)(int64_t)(POINTS[at].tail - p) - 0.5) * POINTS[at].scale;
    double series = SERIES[at][DEGREE - 1];
    for (int k = DEGREE - 2; k >= 0; k--) series = series * y + SERIES[at][k];
    double size = (double)at / 32.0 + series * y;
    *z = word < 0 ? -size : size;
    *error = SECOND_ERROR + (SECOND_TAIL * 0x1p+64) * POINTS[at].scale;
    return 1;
}

/* Tier 2's R / g, an integer; cells = S / g and scale = s / g. Returns 0 if in doubt. */
INLINE int settled(int64_t word, double cells, double scale, double *integer) {
    double z, error, whole = cells, size = fabs(cells);
    if (!(size <= LARGEST) || !second_tier(word, &z, &error)) return 0;
    if (size < 0x1p+51) whole = (cells + NEAREST) - NEAREST;
    else if (size < 0x1p+52) whole = (double)(int64_t)cells; /* what is larger is an integer */
    double sum = (cells - whole) + scale * z;
    double nearest = (sum + NEAREST) - NEAREST;
    *integer = whole + nearest; /* rounded once, like the integer itself */
    return fabs(sum - nearest) <= 0.5 - (scale * error + SECOND_ROUNDING);
}

#endif
