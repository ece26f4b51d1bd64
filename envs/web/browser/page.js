// Runs in every document before its own scripts: what an agent can see of it and do to it.
// `__agentgym` has: snapshot, stay, locate, edit, setValue, choose, scroll, which answer at once,
// and pictures.
(seed => {
  if (window.__agentgym) return;

  // ------------------------------------------------------------------------------ chance
  // Scripts that draw before they are seeded draw the same in every episode of one seed.
  let state = seed >>> 0;
  Math.random = () => {
    state = (state + 0x6D2B79F5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };

  // --------------------------------------------------------------------- what is noticed
  const POINTER = new Set(['click', 'mousedown', 'mouseup', 'pointerdown', 'dblclick']);
  const listening = new WeakSet();
  const listen = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (type, ...rest) {
    if (POINTER.has(type) && this instanceof Element) listening.add(this);
    return listen.call(this, type, ...rest);
  };
  let isLeaving = false;
  let opened = 0;
  const leave = () => { isLeaving = true; };
  const stay = () => { isLeaving = false; return {}; };
  if (window.navigation) {
    listen.call(window.navigation, 'navigate', event => {
      // A download without a name has the empty one.
      if (!event.destination.sameDocument && event.downloadRequest === null) leave();
    });
  }
  listen.call(window, 'beforeunload', leave);
  listen.call(window, 'submit', event => { if (!event.defaultPrevented) leave(); });
  listen.call(window, 'click', event => {
    const link = event.target instanceof Element && event.target.closest('a[href][target]');
    if (!link || event.defaultPrevented) return;
    if (!['', '_self', '_parent', '_top'].includes(link.target)) opened += 1;
  });

  // ---------------------------------------------------------------------------- identity
  // A number stands for an element and what it was shown as: a page that uses the element again for
  // something else gets a new number for it, and the old one is refused.
  const ids = new WeakMap();
  const elements = new Map();
  let last = 0;
  const idOf = element => {
    const meaning = meaningOf(element);
    if (elements.get(ids.get(element))?.meaning !== meaning) {
      last += 1;
      ids.set(element, last);
      elements.set(last, { element: new WeakRef(element), meaning });
    }
    return ids.get(element);
  };
  // The element with a number, or why it cannot be acted on.
  const find = id => {
    const known = elements.get(id);
    const element = known?.element.deref();
    if (!element || !element.isConnected) return { error: gone(id) };
    const meaning = meaningOf(element);
    if (known.meaning === meaning) return { element };
    return { error: `element ${id} has changed: it was ${short(known.meaning)}, it is `
      + `${short(meaning)} now` };
  };

  // -------------------------------------------------------------------- roles and names
  const INPUT_ROLES = {
    button: 'button', submit: 'button', reset: 'button', image: 'button', checkbox: 'checkbox',
    radio: 'radio', range: 'slider', number: 'spinbutton', search: 'searchbox',
  };
  const TAG_ROLES = {
    BUTTON: 'button', TEXTAREA: 'textbox', SELECT: 'combobox', IMG: 'image', TABLE: 'table',
    TR: 'row', TD: 'cell', TH: 'columnheader', UL: 'list', OL: 'list', LI: 'listitem',
    NAV: 'navigation', DIALOG: 'dialog', SUMMARY: 'button', CANVAS: 'canvas', IFRAME: 'frame',
    H1: 'heading', H2: 'heading', H3: 'heading', H4: 'heading', H5: 'heading', H6: 'heading',
    PROGRESS: 'progressbar', METER: 'meter', FIELDSET: 'group',
  };
  // Containers that matter only for what is in them.
  const SILENT = new Set(['presentation', 'none', 'list', 'table', 'group', 'rowgroup']);
  const STRUCTURE = new Set([
    'row', 'listitem', 'dialog', 'tablist', 'menu', 'tree', 'checkbox', 'radio', 'button', 'link',
  ]);
  const LIVE = new Set(['status', 'log', 'alert']);
  const SHAPES = new Set(['circle', 'rect', 'polygon', 'ellipse', 'line', 'path', 'text']);
  // These are named by all text inside, which is then not shown again.
  const NAMED_BY_CONTENT = new Set([
    'button', 'link', 'heading', 'tab', 'menuitem', 'option', 'columnheader', 'checkbox', 'radio',
    'treeitem', 'switch',
  ]);
  const clean = text => (text || '').replace(/\s+/g, ' ').trim();

  const roleOf = element => {
    const given = element.getAttribute('role');
    if (given) return given;
    if (element.tagName === 'A') return element.hasAttribute('href') ? 'link' : '';
    if (element.tagName === 'INPUT') return INPUT_ROLES[element.type] || 'textbox';
    if (element.tagName === 'SELECT' && (element.multiple || element.size > 1)) return 'listbox';
    if (element.isContentEditable && !element.parentElement?.isContentEditable) return 'textbox';
    if (element instanceof element.ownerDocument.defaultView.SVGElement) {
      return SHAPES.has(element.tagName) ? element.tagName : '';
    }
    return TAG_ROLES[element.tagName] || '';
  };

  // What a label says, without what the control in it holds.
  const saidBy = node => {
    if (node.nodeType === 3) return node.data;
    if (node.nodeType !== 1 || ['SELECT', 'TEXTAREA', 'BUTTON'].includes(node.tagName)) return '';
    return [...node.childNodes].map(saidBy).join('');
  };

  const labelOf = element => {
    const labels = element.labels ? [...element.labels] : [];
    return clean(labels.map(saidBy).join(' '));
  };

  const nameOf = (element, role) => {
    const direct = clean(element.getAttribute('aria-label'));
    if (direct) return direct;
    const by = element.getAttribute('aria-labelledby');
    if (by) {
      const root = element.ownerDocument;
      const named = by.split(/\s+/).map(id => root.getElementById(id)?.innerText).join(' ');
      if (clean(named)) return clean(named);
    }
    if (element.tagName === 'INPUT' && role === 'button') return clean(element.value);
    const label = labelOf(element);
    if (label) return label;
    if (role === 'text' || SHAPES.has(role)) return clean(element.textContent);
    if (NAMED_BY_CONTENT.has(role) && clean(element.innerText)) return clean(element.innerText);
    return clean(element.getAttribute('alt') || element.getAttribute('placeholder')
      || element.getAttribute('title'));
  };

  // What an element says that it is and does, whatever it holds and in whatever state it is.
  const HOLDING = new Set(['textbox', 'searchbox', 'spinbutton', 'combobox', 'listbox']);
  const meaningOf = element => {
    const role = roleOf(element);
    let name = nameOf(element, role);
    if (!name && !HOLDING.has(role)) {
      const own = [...element.childNodes].find(node => node.nodeType === 3 && clean(node.data));
      const style = element.ownerDocument.defaultView.getComputedStyle(element);
      const isPressed = isPointer(element, style);
      name = own ? clean(own.data) : isPressed ? clean(element.textContent) : '';
    }
    return [role || 'text', name && `"${name}"`].filter(Boolean).join(' ');
  };
  const short = text => (text.length > 80 ? `${text.slice(0, 80)}...` : text);

  const statesOf = element => {
    const states = [];
    const aria = (name, word) => {
      const value = element.getAttribute(`aria-${name}`);
      if (value === 'true') states.push(word);
      if (value === 'false' && name === 'expanded') states.push('collapsed');
    };
    if (element.checked === true && element.tagName === 'INPUT') states.push('checked');
    aria('checked', 'checked');
    aria('selected', 'selected');
    aria('expanded', 'expanded');
    aria('pressed', 'pressed');
    const active = element.ownerDocument.activeElement?.getAttribute('aria-activedescendant');
    if (element.id && element.id === active) states.push('active');
    if (element.tagName === 'TEXTAREA') states.push('multiline');
    if (isDisabled(element)) states.push('disabled');
    if (element.readOnly === true && 'value' in element) states.push('readonly');
    return states;
  };

  const isDisabled = element =>
    element.matches(':disabled') || element.getAttribute('aria-disabled') === 'true';

  const isPointer = (element, style) =>
    listening.has(element) || element.onclick !== null || element.onmousedown !== null
    || (style.cursor === 'pointer'
        && getComputedStyle(element.parentElement || element).cursor !== 'pointer');

  // Words for what has none: an icon's class, a shape's colour.
  const hintOf = element => {
    const names = [...element.classList, element.id].filter(name => name && !/^ui-/.test(name));
    return names.slice(0, 3).join(' ');
  };

  const looksOf = (element, style, box) => {
    const isShape = element instanceof element.ownerDocument.defaultView.SVGElement;
    const looks = {
      size: `${Math.round(box.width)}x${Math.round(box.height)}`,
      at: `${Math.round(box.x + box.width / 2)},${Math.round(box.y + box.height / 2)}`,
    };
    const colour = isShape ? style.fill : style.backgroundColor;
    if (colour && colour !== 'none' && colour !== 'rgba(0, 0, 0, 0)') looks.color = colour;
    if (isShape && style.stroke && style.stroke !== 'none') looks.stroke = style.stroke;
    return looks;
  };

  // ----------------------------------------------------------------------------- snapshot
  const isVisible = (element, style, box) =>
    style.visibility !== 'hidden' && style.display !== 'none' && box.width > 0 && box.height > 0;

  const walk = (element, depth, out, options) => {
    if (out.length >= options.most || (options.skip && element.matches(options.skip))) return;
    if (['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD'].includes(element.tagName)) return;
    const view = element.ownerDocument.defaultView;
    if (!view) return;
    const style = view.getComputedStyle(element);
    if (style.display === 'none') return;
    const box = element.getBoundingClientRect();
    const isSeen = isVisible(element, style, box);
    // A child of an element without a size, or of a hidden one, may be seen all the same.
    let role = isSeen ? roleOf(element) : '';
    if (isSeen && element.getAttribute('aria-hidden') === 'true') return;
    const hasControl = element.tagName === 'LABEL' && element.control
      && element.control.getClientRects().length > 0;
    if (hasControl) role = '';
    if (SILENT.has(role) || (LIVE.has(role) && !clean(element.textContent))) role = '';
    const isClickable = isSeen && element.tagName !== 'BODY' && isPointer(element, style);
    const texts = [...element.childNodes]
      .filter(node => node.nodeType === 3 && clean(node.data)).map(node => clean(node.data));
    // A bare list item or cell is known by what is in it.
    if (['listitem', 'cell'].includes(role) && !texts.length && !isClickable) role = '';
    const isOwnLine = role !== '' || (isSeen && isClickable && !hasControl)
      || (isSeen && texts.length > 0 && !hasControl);
    let inner = depth;
    if (isOwnLine) {
      out.push(line(element, role, style, box, depth, isClickable, texts, options));
      inner = depth + 1;
      const isClosed = NAMED_BY_CONTENT.has(role) || SHAPES.has(role)
        || ['SELECT', 'TEXTAREA', 'INPUT'].includes(element.tagName);
      if (isClosed && !hasWidgets(element)) return;
    }
    const own = out.length - 1;
    walkChildren(element, inner, out, options, { isOwnLine, hasControl });
    // What holds something else is known by that.
    if (isOwnLine && out.length > own + 1 && !options.at) delete out[own].looks;
  };

  // Texts after the first one, between children: shown in their place, without an id.
  const walkChildren = (element, depth, out, options, parent) => {
    let isFirst = true;
    const children = element.tagName === 'IFRAME' ? framed(element) : element.childNodes;
    for (const child of children) {
      if (child.nodeType === 1) {
        walk(child, depth, out, options);
      } else if (child.nodeType === 3 && clean(child.data) && parent.isOwnLine) {
        if (!isFirst) out.push({ role: '', name: clean(child.data), depth });
        isFirst = false;
      }
    }
  };

  const framed = frame => {
    try {
      return frame.contentDocument?.body ? [frame.contentDocument.body] : [];
    } catch {
      return []; // of another origin
    }
  };

  const hasWidgets = element =>
    element.querySelector('a[href],button,input,select,textarea,[role],[onclick]') !== null;

  const line = (element, role, style, box, depth, isClickable, texts, options) => {
    const shown = role || (texts.length ? 'text' : 'clickable');
    const node = { id: idOf(element), role: shown, depth, states: statesOf(element) };
    node.name = role ? nameOf(element, role) : texts[0] || nameOf(element, 'clickable');
    const isField = ['INPUT', 'TEXTAREA'].includes(element.tagName);
    if (role && !node.name && texts.length && !isField) node.name = texts[0];
    if (isClickable) node.clickable = true;
    if (isField && !['checkbox', 'radio', 'button'].includes(role)) {
      node.value = element.type === 'password' ? '*'.repeat(element.value.length) : element.value;
      if (!['text', 'textarea', 'search'].includes(element.type)) node.type = element.type;
    } else if (role === 'textbox') {
      node.value = clean(element.innerText);
      node.name = clean(element.getAttribute('aria-label'));
    } else if (element.tagName === 'SELECT') {
      node.options = [...element.options].map(option => clean(option.label));
      node.value = [...element.selectedOptions].map(option => clean(option.label)).join(' | ');
    }
    const isBlank = !node.name && !isField && element.tagName !== 'SELECT';
    if (isBlank || SHAPES.has(role)) {
      if (!STRUCTURE.has(role)) node.looks = looksOf(element, style, box);
      if (!node.name && hintOf(element)) node.hint = hintOf(element);
    } else if (options.at) {
      node.looks = { at: looksOf(element, style, box).at };
    }
    return node;
  };

  const focused = () => {
    let element = document.activeElement;
    try {
      while (element?.tagName === 'IFRAME' && element.contentDocument?.activeElement) {
        element = element.contentDocument.activeElement;
      }
    } catch { /* of another origin: the frame has the focus */ }
    if (!element || element.tagName === 'BODY' || element.tagName === 'HTML') return null;
    return ids.get(element) || null;
  };

  const snapshot = options => {
    const nodes = [];
    if (document.body) walk(document.body, 0, nodes, options);
    const seen = { nodes, focus: focused(), title: document.title, isLeaving, opened };
    seen.isCut = nodes.length >= options.most;
    opened = 0;
    return seen;
  };

  // ----------------------------------------------------------------------------- pictures
  // What a style sheet shows in the place of an element is fetched when the element first appears.
  // Fetched before, and kept, it is there at once: else what is seen would depend on the hurry.
  const kept = new Map();
  const known = new WeakSet();
  const fetchShown = sheet => {
    if (known.has(sheet)) return;
    known.add(sheet);
    let rules = [];
    try {
      rules = [...sheet.cssRules];
    } catch (error) {
      return; // of another site, which may not be read
    }
    for (const rule of rules) {
      const content = (rule.style && rule.style.content) || '';
      for (const [, path] of content.matchAll(/url\("?([^")]+)"?\)/g)) {
        const url = new URL(path, sheet.href || document.baseURI).href;
        if (kept.has(url)) continue;
        const picture = new Image();
        picture.src = url;
        kept.set(url, picture);
      }
    }
  };

  // A promise of when every picture of the page has its size, or failed to load.
  const pictures = () => {
    [...document.styleSheets].forEach(fetchShown);
    const open = [...document.images, ...kept.values()]
      .filter(image => !image.complete && image.loading !== 'lazy');
    return Promise.all(open.map(image => new Promise(done => {
      image.addEventListener('load', done, { once: true });
      image.addEventListener('error', done, { once: true });
    })));
  };

  // ------------------------------------------------------------------------------ actions
  const gone = id => `there is no element ${id} on this page: take a number from the list`;

  const describe = element => {
    const role = roleOf(element) || element.tagName.toLowerCase();
    const id = ids.get(element);
    return id ? `element ${id} (${role})` : `a ${role} element`;
  };

  const offset = element => {
    let x = 0;
    let y = 0;
    let view = element.ownerDocument.defaultView;
    while (view && view !== window && view.frameElement) {
      const box = view.frameElement.getBoundingClientRect();
      x += box.x + view.frameElement.clientLeft;
      y += box.y + view.frameElement.clientTop;
      view = view.parent;
    }
    return { x, y };
  };

  const PARTS = [0.5, 0.2, 0.8, 0.05, 0.95];
  const POINTS = PARTS.flatMap(fx => PARTS.map(fy => [fx, fy]));

  // Where to point at an element, or why that is not possible.
  const locate = id => {
    const { element, error } = find(id);
    if (error) return { error };
    if (isDisabled(element)) return { error: `element ${id} is disabled` };
    element.scrollIntoView({ block: 'center', inline: 'center', behavior: 'instant' });
    const box = [...element.getClientRects()].find(rect => rect.width > 0 && rect.height > 0);
    if (!box) return { error: `element ${id} is not visible now` };
    const root = element.ownerDocument;
    let blocker = null;
    // The middle first; where that is covered, whatever part can be seen.
    for (const [fx, fy] of POINTS) {
      const x = box.x + box.width * fx;
      const y = box.y + box.height * fy;
      const hit = root.elementFromPoint(x, y);
      const isHit = hit && (hit === element || element.contains(hit)
        || (hit.tagName === 'LABEL' && hit.control === element));
      if (isHit) {
        const shift = offset(element);
        return { x: x + shift.x, y: y + shift.y };
      }
      blocker = blocker || hit;
    }
    return {
      error: blocker ? `element ${id} is covered by ${describe(blocker)}`
        : `element ${id} is out of view`,
    };
  };

  const TYPED = new Set(['text', 'search', 'email', 'url', 'tel', 'password', 'number', '']);

  // Select what an editable element holds, so that keys replace it; or say why it takes no text.
  const edit = id => {
    const { element, error } = find(id);
    if (error) return { error };
    const isField = element.tagName === 'TEXTAREA' || element.tagName === 'INPUT';
    if (isDisabled(element)) return { error: `element ${id} is disabled` };
    if (isField && element.readOnly) return { error: `element ${id} is read-only` };
    if (element.tagName === 'INPUT' && ['date', 'time', 'month', 'week', 'range', 'color',
      'datetime-local'].includes(element.type)) return { isSet: true };
    const takes = element.tagName === 'TEXTAREA' || element.isContentEditable
      || (element.tagName === 'INPUT' && TYPED.has(element.type));
    if (!takes) return { error: `element ${id} takes no text: it is ${describe(element)}` };
    element.focus();
    if (isField) element.select();
    else element.ownerDocument.getSelection().selectAllChildren(element);
    const held = isField ? element.value : element.innerText;
    return { isEmpty: clean(held) === '' };
  };

  const changed = element => {
    for (const type of ['input', 'change']) {
      element.dispatchEvent(new Event(type, { bubbles: true }));
    }
  };

  const setValue = (id, text) => {
    const { element, error } = find(id);
    if (error) return { error };
    element.focus();
    const before = element.value;
    element.value = text;
    if (element.value !== text) {
      element.value = before;
      const forms = { date: '2024-03-09', time: '14:30', month: '2024-03', color: '#ff8800' };
      const form = forms[element.type] ? `, such as ${forms[element.type]}` : '';
      return { error: `element ${id} takes a ${element.type}${form}` };
    }
    changed(element);
    return {};
  };

  const choose = (id, wanted) => {
    const { element, error } = find(id);
    if (error) return { error };
    if (element.tagName !== 'SELECT') {
      return { error: `element ${id} has no options: it is ${describe(element)}` };
    }
    if (isDisabled(element)) return { error: `element ${id} is disabled` };
    const options = [...element.options];
    const option = options.find(one => clean(one.label) === clean(wanted))
      || options.find(one => clean(one.label).toLowerCase() === clean(wanted).toLowerCase());
    if (!option) {
      return { error: `element ${id} has no such option`, options: options.map(o => clean(o.label)) };
    }
    if (option.disabled) return { error: `that option of element ${id} is disabled` };
    element.focus();
    option.selected = true;
    changed(element);
    return {};
  };

  const scroll = (id, direction) => {
    const { element, error } = id === null ? { element: document.scrollingElement } : find(id);
    if (error) return { error };
    let target = element;
    const isRoom = one => one.scrollHeight > one.clientHeight + 1;
    while (target && target !== document.body && !isRoom(target)) target = target.parentElement;
    target = target && isRoom(target) ? target : document.scrollingElement;
    const before = target.scrollTop;
    const step = Math.max(20, target.clientHeight * 0.8);
    const goals = { up: before - step, down: before + step, top: 0, bottom: target.scrollHeight };
    target.scrollTo({ top: goals[direction], behavior: 'instant' });
    if (target.scrollTop === before) return { error: `there is nothing further ${direction}` };
    return {};
  };

  const api = { snapshot, stay, pictures, locate, edit, setValue, choose, scroll };
  Object.defineProperty(window, '__agentgym', { value: Object.freeze(api) });
})
