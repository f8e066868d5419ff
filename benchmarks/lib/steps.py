"""Draw step curves over time as an SVG picture, without a library."""

from collections.abc import Mapping, Sequence

__all__ = ["steps_svg"]

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 240, 44, 34, 36
COLORS = ("#1f6feb", "#d1772b")


def steps_svg(title: str, times: Sequence[float], curves: Mapping[str, Sequence[int]]) -> str:
    """Return the picture of values that stay the same from each time to the next.

    Args:
        title: the sentence above the curves.
        times: seconds, ascending.
        curves: the values of each curve at these times, by its name; at most two curves.
    """
    last, most = max(times[-1], 1e-9), max(max(values) for values in curves.values()) or 1
    across, up = (WIDTH - LEFT - 12) / last, (HEIGHT - TOP - BOTTOM) / most
    floor = HEIGHT - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12"><title>{title}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for value in range(most + 1):
        y = floor - value * up
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - 12}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value}</text>')
    for second in range(0, int(last) + 1, max(1, int(last / 8 / 5) * 5 or 1)):
        x = LEFT + second * across
        parts.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{second} s</text>')
    for number, (name, values) in enumerate(curves.items()):
        color, x = COLORS[number], LEFT + number * 180
        path = f"M{LEFT} {floor - values[0] * up:.1f}" + "".join(
            f"H{LEFT + at * across:.1f}V{floor - value * up:.1f}"
            for at, value in zip(times, values, strict=True)
        )
        dash = ' stroke-dasharray="5 3"' if number else ""
        parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        parts.append(f'<path d="M{x} 16h22" stroke="{color}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{x + 28}" y="20">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
