// What the operator's pages load before their own scripts: htmx 4 and uPlot 1.6, of which only this is used.

declare const htmx: { trigger(element: Element, event: string): void };

declare class uPlot {
  constructor(options: object, data: (number | null)[][], target: HTMLElement);
  root: HTMLElement;
  destroy(): void;
  setSize(size: { width: number; height: number }): void;
}
